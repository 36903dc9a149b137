"""Calls MachineService.Version over mTLS and prints the answer as JSON.

Arguments: ENDPOINT CA CERTIFICATE KEY FOLDER-OF-GENERATED-MODULES
"""

import sys

endpoint, authority, certificate, key, generated = sys.argv[1:]
sys.path.insert(0, generated)

import grpc  # noqa: E402
from google.protobuf import empty_pb2, json_format  # noqa: E402
from machine import machine_pb2_grpc  # noqa: E402


def content(path):
    with open(path, "rb") as file:
        return file.read()


credentials = grpc.ssl_channel_credentials(
    root_certificates=content(authority),
    private_key=content(key),
    certificate_chain=content(certificate),
)
with grpc.secure_channel(endpoint, credentials) as channel:
    machine = machine_pb2_grpc.MachineServiceStub(channel)
    answer = machine.Version(empty_pb2.Empty(), timeout=30)
print(json_format.MessageToJson(answer))
