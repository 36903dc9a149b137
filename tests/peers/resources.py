"""Reads and watches resources as talosctl's `get` does, over mTLS, with stubs that Google's compiler made of the protos.

Arguments: ENDPOINT CA CERTIFICATE KEY FOLDER-OF-GENERATED-MODULES get|watch WORD [ID]
`get` prints {"kind": TYPE, "rows": [[NAMESPACE, DISPLAY TYPE, ID, VERSION, COLUMN...], ...], "specs": [YAML AS JSON, ...],
"decoded": [PROTOBUF AS JSON, ...]} or {"code": NAME, "details": TEXT} for a refusal.
`watch` prints a line of JSON for each event after the first message, which clients swallow: {"event": NAME, "id": ID,
"spec": YAML AS JSON}.
"""

import json
import sys
import types

endpoint, authority, certificate, key, generated, mode, word, *identity = sys.argv[1:]
sys.path.insert(0, generated)
# Python has a module of this name already, and a folder without __init__.py comes after it.
sys.modules["resource"] = types.ModuleType("resource")
sys.modules["resource"].__path__ = [f"{generated}/resource"]

import grpc  # noqa: E402
import yaml  # noqa: E402
from cosi.resource import meta_pb2, state_pb2, state_pb2_grpc  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from google.protobuf.empty_pb2 import Empty  # noqa: E402
from machine import machine_pb2_grpc  # noqa: E402
from resource.definitions import block_pb2, cluster_pb2, config_pb2, network_pb2  # noqa: E402
from resource.definitions import runtime_pb2, v1alpha1_pb2  # noqa: E402

# The messages of the types that this client decodes, as a dashboard does.
MESSAGES = {
    "Disks.block.talos.dev": block_pb2.DiskSpec,
    "HostnameStatuses.net.talos.dev": network_pb2.HostnameStatusSpec,
    "LinkStatuses.net.talos.dev": network_pb2.LinkStatusSpec,
    "MachineConfigs.config.talos.dev": config_pb2.MachineConfigSpec,
    "MachineStatuses.runtime.talos.dev": runtime_pb2.MachineStatusSpec,
    "MachineTypes.config.talos.dev": config_pb2.MachineTypeSpec,
    "Members.cluster.talos.dev": cluster_pb2.MemberSpec,
    "NodeAddresses.net.talos.dev": network_pb2.NodeAddressSpec,
    "ResourceDefinitions.meta.cosi.dev": meta_pb2.ResourceDefinitionSpec,
    "RouteStatuses.net.talos.dev": network_pb2.RouteStatusSpec,
    "Services.v1alpha1.talos.dev": v1alpha1_pb2.ServiceSpec,
}


def content(path):
    with open(path, "rb") as file:
        return file.read()


def checked(resource):
    """What talosctl insists on in every element of every list."""
    assert resource.HasField("metadata") and resource.HasField("spec"), resource
    assert resource.metadata.phase in ("running", "tearingDown"), resource
    assert resource.metadata.version == "undefined" or int(resource.metadata.version) > 0, resource
    assert resource.spec.yaml_spec, resource
    return resource


def spec_of(resource):
    return yaml.safe_load(resource.spec.yaml_spec)


def find_kind(stub):
    """The definitions are decoded from protobuf; exactly one has to have the name."""
    request = state_pb2.ListRequest(namespace="meta", type="ResourceDefinitions.meta.cosi.dev")
    found = []
    for reply in stub.List(request, timeout=60):
        resource = checked(reply.resource)
        definition = meta_pb2.ResourceDefinitionSpec.FromString(resource.spec.proto_spec)
        names = [resource.metadata.id, *definition.all_aliases]
        if word.lower() in (name.lower() for name in names):
            found.append(definition)
    assert len(found) == 1, f"{word} means {[definition.resource_type for definition in found]}"
    return found[0]


def cell(path, spec):
    value = spec
    for step in path.strip("{}").replace("[:]", "").split("."):
        if step in ("", "@"):
            continue
        value = value.get(step, "") if isinstance(value, dict) else ""
    return value


def row(definition, resource):
    metadata, spec = resource.metadata, spec_of(resource)
    columns = [cell(column.json_path, spec) for column in definition.print_columns]
    return [metadata.namespace, definition.display_type, metadata.id, metadata.version, *columns]


def decoded(definition, resource):
    message = MESSAGES.get(definition.resource_type)
    return message and json_format.MessageToDict(message.FromString(resource.spec.proto_spec))


def get(stub, definition):
    place = {"namespace": definition.default_namespace, "type": definition.resource_type}
    if identity:
        request = state_pb2.GetRequest(**place, id=identity[0], options=state_pb2.GetOptions())
        resources = [checked(stub.Get(request, timeout=60).resource)]
    else:
        request = state_pb2.ListRequest(**place, options=state_pb2.ListOptions())
        resources = [checked(reply.resource) for reply in stub.List(request, timeout=60)]
    return {
        "kind": definition.resource_type,
        "rows": [row(definition, resource) for resource in resources],
        "specs": [spec_of(resource) for resource in resources],
        "decoded": [decoded(definition, resource) for resource in resources],
    }


def watch(stub, definition):
    request = state_pb2.WatchRequest(
        namespace=definition.default_namespace,
        type=definition.resource_type,
        id=identity[0] if identity else None,
        options=state_pb2.WatchOptions(bootstrap_contents=not identity),
        api_version=1,
    )
    messages = stub.Watch(request)
    first = next(messages)
    assert not first.event, f"the first message would be lost: {first}"
    for message in messages:
        for event in message.event:
            told = {"event": state_pb2.EventType.Name(event.event_type)}
            if event.HasField("resource"):
                resource = checked(event.resource)
                told.update(id=resource.metadata.id, spec=spec_of(resource))
            print(json.dumps(told, default=str), flush=True)


credentials = grpc.ssl_channel_credentials(
    root_certificates=content(authority),
    private_key=content(key),
    certificate_chain=content(certificate),
)
with grpc.secure_channel(endpoint, credentials) as channel:
    try:
        machine_pb2_grpc.MachineServiceStub(channel).Version(Empty(), timeout=60)
        service = state_pb2_grpc.StateStub(channel)
        definition = find_kind(service)
        if mode == "watch":
            watch(service, definition)
        else:
            print(json.dumps(get(service, definition), default=str))
    except grpc.RpcError as error:
        print(json.dumps({"code": error.code().name, "details": error.details()}), flush=True)
