"""The methods of `landscape.proto` for servers and clients, read off its descriptor: no generated code but messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from cluster.serving.landscape_pb2 import DESCRIPTOR

SERVICE = DESCRIPTOR.services_by_name["Landscape"]


def _methods() -> Iterator[tuple[str, Any, Any, bool]]:
    """Name, request, answer, and whether there is a stream of answers, of each method."""
    for method in SERVICE.methods:
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        yield method.name, request, answer, method.server_streaming


def handler_of(servicer: Any) -> Any:
    """What a server of gRPC is given, so that it asks the methods of `servicer`."""
    handlers = {}
    for name, request, answer, streams in _methods():
        make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        handlers[name] = make(
            getattr(servicer, name), request_deserializer=request.FromString,
            response_serializer=answer.SerializeToString,
        )  # fmt: skip
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


class LandscapeStub:
    """The methods for a client: `LandscapeStub(channel).Points(request, metadata=…)`."""

    def __init__(self, channel: Any) -> None:
        for name, request, answer, streams in _methods():
            make = channel.unary_stream if streams else channel.unary_unary
            call = make(
                f"/{SERVICE.full_name}/{name}", request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )  # fmt: skip
            setattr(self, name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no method {name!r}; known: {', '.join(method.name for method in SERVICE.methods)}")
