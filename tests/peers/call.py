"""Calls a method of MachineService over mTLS and prints what came of it as JSON.

Arguments: ENDPOINT CA CERTIFICATE KEY FOLDER-OF-GENERATED-MODULES METHOD REQUEST-AS-JSON
Prints {"answer": MESSAGE}, {"answers": [MESSAGE, ...]} for a stream, or {"code": NAME, "details": TEXT} for a refusal.
"""

import json
import sys

endpoint, authority, certificate, key, generated, method, request = sys.argv[1:]
sys.path.insert(0, generated)

import grpc  # noqa: E402
from google.protobuf import json_format, message_factory  # noqa: E402
from machine import machine_pb2, machine_pb2_grpc  # noqa: E402


def content(path):
    with open(path, "rb") as file:
        return file.read()


credentials = grpc.ssl_channel_credentials(
    root_certificates=content(authority),
    private_key=content(key),
    certificate_chain=content(certificate),
)
service = machine_pb2.DESCRIPTOR.services_by_name["MachineService"]
described = service.methods_by_name[method]
message = json_format.Parse(request, message_factory.GetMessageClass(described.input_type)())
try:
    with grpc.secure_channel(endpoint, credentials) as channel:
        call = getattr(machine_pb2_grpc.MachineServiceStub(channel), method)
        answer = call(message, timeout=30)
        if described.server_streaming:
            said = {"answers": [json_format.MessageToDict(part) for part in answer]}
        else:
            said = {"answer": json_format.MessageToDict(answer)}
except grpc.RpcError as error:
    said = {"code": error.code().name, "details": error.details()}
print(json.dumps(said))
