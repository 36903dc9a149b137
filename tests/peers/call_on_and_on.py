"""Asks for the version ten times a second until a file is there, once over one channel and once over a new one each time.

Arguments: ENDPOINT CA CERTIFICATE KEY FOLDER-OF-GENERATED-MODULES FILE
Prints {"calls": 0} when both were answered once, and at the end, for each way,
{"WAY": {"calls": N, "slowest": SECONDS, "failed": [TEXT, ...], "versions": [TAG, ...]}}.
"""

import json
import os
import sys
import threading
import time

endpoint, authority, certificate, key, generated, end = sys.argv[1:]
sys.path.insert(0, generated)

import grpc  # noqa: E402
from google.protobuf import empty_pb2  # noqa: E402
from machine import machine_pb2_grpc  # noqa: E402


def content(path):
    with open(path, "rb") as file:
        return file.read()


credentials = grpc.ssl_channel_credentials(
    root_certificates=content(authority),
    private_key=content(key),
    certificate_chain=content(certificate),
)
began = threading.Barrier(3)
began_at = time.monotonic()


def ask(channel):
    answer = machine_pb2_grpc.MachineServiceStub(channel).Version(empty_pb2.Empty(), timeout=20)
    return answer.messages[0].version.tag


def ask_anew():
    # Channels with the same arguments share a connection unless each has a pool of its own.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(endpoint, credentials, options) as channel:
        return ask(channel)


def go_on(way, ask_once, said):
    found = {"calls": 0, "slowest": 0.0, "failed": [], "versions": []}
    said[way] = found
    while not os.path.exists(end):
        begin = time.monotonic()
        found["calls"] += 1
        try:
            tag = ask_once()
            if found["versions"][-1:] != [tag]:
                found["versions"].append(tag)
        except grpc.RpcError as error:
            asked, answered = begin - began_at, time.monotonic() - began_at
            when = f"asked after {asked:.1f} s, answered after {answered:.1f} s"
            found["failed"].append(f"{when}: {error.code().name}: {error.details()}")
        took = time.monotonic() - begin
        found["slowest"] = max(found["slowest"], took)
        if found["calls"] == 1:
            began.wait()
        time.sleep(max(0.0, 0.1 - took))


said = {}
with grpc.secure_channel(endpoint, credentials) as kept:
    ways = {"one channel": lambda: ask(kept), "anew": ask_anew}
    threads = [threading.Thread(target=go_on, args=(way, once, said)) for way, once in ways.items()]
    for thread in threads:
        thread.start()
    began.wait()
    print(json.dumps({"calls": 0}), flush=True)
    for thread in threads:
        thread.join()
print(json.dumps(said), flush=True)
