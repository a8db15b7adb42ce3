"""test/chaos/operations.py: the history of a round as operations, for the independent checker

Pure.  README.md describes the fields.  The checker (porcupine/) knows nothing but this file, so
an operation states what a client saw, and no conclusion.
"""

from plan import PERMITS


def of_record(record, grant):
    """The operations of one acquire; `grant` numbers the acquires."""
    about = {"client": f"{record['host']}/{record['worker']}", "resource": record["resource"],
             "mode": record["mode"], "grant": grant}
    if record["mode"] == "permits":
        about["permits"] = PERMITS
    if not record["held"]:
        outcome = "refused" if record["result"] == "busy" else "failed"
        yield {**about, "kind": "acquire", "call": record["begin"], "return": record["end"], "outcome": outcome}
        return
    about["token"] = record["token"]
    first, *looks = [at for at, _ in record["held"]]
    yield {**about, "kind": "acquire", "call": record["begin"], "return": first, "outcome": "ok"}
    for at in looks:
        yield {**about, "kind": "look", "call": at, "return": at, "outcome": "ok"}
    if record["released"] is not None:
        yield {**about, "kind": "release", "call": record["released"], "return": record["returned"], "outcome": "ok"}
    for store, value, token, begin, end in record["writes"]:
        yield {**about, "kind": "write", "store": store, "value": value, "token": token, "call": begin,
               "return": end, "outcome": "unknown" if end is None else "ok"}


def of_round(records, logs, reads):
    """logs: [(store, resource, value, token)], the committed writes; reads: [(store, resource,
    value, begin, end)], when all work was over.

    A client that was killed, or whose server crashed, did not report all its writes: only the
    log tells of these."""
    operations = [operation for grant, record in enumerate(records, 1) for operation in of_record(record, grant)]
    reported = {(o["store"], o["resource"], o["value"], o["token"]) for o in operations if o["kind"] == "write"}
    for store, resource, value, token in logs:
        if (store, resource, value, token) not in reported:
            operations.append({"client": "log", "resource": resource, "mode": "exclusive", "kind": "write",
                               "store": store, "value": value, "token": token, "call": 0, "return": None,
                               "outcome": "unknown"})
    for store, resource, value, begin, end in reads:
        operations.append({"client": "conductor", "resource": resource, "mode": "exclusive", "kind": "read",
                           "store": store, "value": value, "call": begin, "return": end, "outcome": "ok"})
    return operations
