"""A broker's answers about itself: which versions of requests it supports, and how it refuses the others."""

from dualwrite.wire.apis import ApiKey, ApiVersionsRequest
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject


@case
def versions_of_every_request(broker: Subject) -> None:
    answer = broker.client.ask(ApiVersionsRequest(client_software_name="tests", client_software_version="1"), 4)
    names = {key.value: key.name for key in ApiKey}
    for entry in sorted(answer.api_keys, key=lambda entry: int(entry.api_key)):
        if entry.api_key in names:
            broker.note(names[entry.api_key], least=entry.min_version, most=entry.max_version)


@case
def clients_that_introduce_themselves(broker: Subject) -> None:
    for label, (name, version) in {
        "good": ("tests", "1.0"),
        "no name": ("", "1.0"),
        "no version": ("tests", ""),
        "a space": ("my tests", "1.0"),
        "a dash at the end": ("tests-", "1.0"),
        "dots and dashes": ("te-s.ts", "1.0-rc.1"),
    }.items():
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        answer = broker.connect().ask(request, 3)
        broker.note(label, error=answer.error_code, some=bool(answer.api_keys))
