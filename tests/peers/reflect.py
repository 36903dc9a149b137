"""Calls methods without any generated code: what they are called and how messages look is asked of the server by reflection.

Arguments: ENDPOINT CA CERTIFICATE KEY CALLS-AS-JSON, where CALLS is [[SERVICE, METHOD, REQUEST], ...]
Prints {"health": NAME, "services": [NAME, ...], "said": [...]}; what is said of a call is as in call.py.
"""

import json
import sys

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

endpoint, authority, certificate, key, calls = sys.argv[1:]


def content(path):
    with open(path, "rb") as file:
        return file.read()


def call(channel, pool, service, name, request):
    method = pool.FindServiceByName(service).methods_by_name[name]
    takes, gives = (message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type))
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    invoke = make(
        f"/{service}/{name}",
        request_serializer=takes.SerializeToString,
        response_deserializer=gives.FromString,
    )
    try:
        answer = invoke(json_format.ParseDict(request, takes()), timeout=60)
        if method.server_streaming:
            return {"answers": [json_format.MessageToDict(part) for part in answer]}
        return {"answer": json_format.MessageToDict(answer)}
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": error.details()}


credentials = grpc.ssl_channel_credentials(
    root_certificates=content(authority),
    private_key=content(key),
    certificate_chain=content(certificate),
)
with grpc.secure_channel(endpoint, credentials) as channel:
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = descriptor_pool.DescriptorPool(database)
    said = [call(channel, pool, *one) for one in json.loads(calls)]
    print(
        json.dumps(
            {
                "health": health_pb2.HealthCheckResponse.ServingStatus.Name(health.status),
                "services": sorted(database.get_services()),
                "said": said,
            }
        )
    )
