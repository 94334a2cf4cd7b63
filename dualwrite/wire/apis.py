"""The table of Kafka APIs that this project speaks, as broker or as client: key, request message, response message.

The message classes are kafka-python's, generated from Apache Kafka's own schema files; one class serves every version,
and a field that a version lacks reads as the schema's default. Everything else imports them from here.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

__all__ = [
    "APIS",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "Api",
    "ApiKey",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "Message",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
]

Message = Any
"""An instance of one of the message classes. kafka-python has no types; the codec checks what the wire can."""


class ApiKey(IntEnum):
    """Kafka's API keys (ApiKeys.java)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


class Api(NamedTuple):
    """The two messages of one API."""

    request: Any
    response: Any


APIS: dict[ApiKey, Api] = {
    ApiKey.PRODUCE: Api(ProduceRequest, ProduceResponse),
    ApiKey.FETCH: Api(FetchRequest, FetchResponse),
    ApiKey.LIST_OFFSETS: Api(ListOffsetsRequest, ListOffsetsResponse),
    ApiKey.METADATA: Api(MetadataRequest, MetadataResponse),
    ApiKey.OFFSET_COMMIT: Api(OffsetCommitRequest, OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: Api(OffsetFetchRequest, OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: Api(FindCoordinatorRequest, FindCoordinatorResponse),
    ApiKey.SASL_HANDSHAKE: Api(SaslHandshakeRequest, SaslHandshakeResponse),
    ApiKey.API_VERSIONS: Api(ApiVersionsRequest, ApiVersionsResponse),
    ApiKey.CREATE_TOPICS: Api(CreateTopicsRequest, CreateTopicsResponse),
    ApiKey.INIT_PRODUCER_ID: Api(InitProducerIdRequest, InitProducerIdResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    ApiKey.END_TXN: Api(EndTxnRequest, EndTxnResponse),
    ApiKey.SASL_AUTHENTICATE: Api(SaslAuthenticateRequest, SaslAuthenticateResponse),
    ApiKey.DESCRIBE_PRODUCERS: Api(DescribeProducersRequest, DescribeProducersResponse),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(DescribeTransactionsRequest, DescribeTransactionsResponse),
    ApiKey.LIST_TRANSACTIONS: Api(ListTransactionsRequest, ListTransactionsResponse),
}
