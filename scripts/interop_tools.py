#!/usr/bin/env python3
"""Shows exports to the tools of the ecosystems that they are for, and prints
what each tool said, as one JSON object. Nothing of this project is used.

`dsse FILE --public HEX`: `securesystemslib` checks the envelope's signature
under an Ed25519 key, `in-toto-attestation` the statement, and its schema of the
predicate (test result v0, provenance v1) every member of it. The key is the
contract's, and not the one that lies beside the envelope.

`digests FILE --folder DIR`: every subject of a statement that is a file there
has the digests that the statement gives.

`model DIR --signature FILE --public PEM`: `model_signing verify key`.

`crate DIR`: `rocrate` loads the folder; `roc-validator` checks RO-Crate 1.1 and
Process Run Crate 0.5 (required and recommended), without a network: the terms
are those that the package `rocrate` brings.

Exit codes: 0 the tool took it; 1 the tool refused it; 2 it could not run.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from interop_said import Refused, tell

CONTEXT_URL = "https://w3id.org/ro/crate/1.1/context"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PROVENANCE = "https://slsa.dev/provenance/v1"
AUDIT = "https://governed-ledger.invalid/audit/v1"


def read_envelope(path: pathlib.Path) -> tuple[dict[str, Any], bytes]:
    envelope = json.loads(path.read_bytes())
    return envelope, base64.b64decode(envelope["payload"], validate=True)


def check_dsse(arguments: argparse.Namespace) -> dict[str, Any]:
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    raw, payload = read_envelope(arguments.file)
    keyid = raw["signatures"][0]["keyid"]
    key = SSlibKey(keyid, "ed25519", "ed25519", {"public": arguments.public})
    try:
        accepted = Envelope.from_dict(raw).verify([key], 1)
    except VerificationError as error:
        raise Refused(f"securesystemslib: {error}") from error
    if raw["payloadType"] != "application/vnd.in-toto+json":
        raise Refused(f"in-toto: payload type {raw['payloadType']}")
    try:
        statement = Statement.copy_from_pb(json_format.Parse(payload, statement_pb2.Statement()))
        statement.validate()
        document = json.loads(payload)
        predicate = document["predicate"]
        said: dict[str, Any] = {}
        if statement.pb.predicate_type == TEST_RESULT:
            result = json_format.ParseDict(predicate, test_result_pb2.TestResult())
            for descriptor in result.configuration:
                ResourceDescriptor.copy_from_pb(descriptor).validate()
            said["result"] = result.result
            said["num_passed"] = len(result.passed_tests)
            said["num_warned"] = len(result.warned_tests)
            said["failed"] = list(result.failed_tests)
        if statement.pb.predicate_type == PROVENANCE:
            provenance = json_format.ParseDict(predicate, provenance_pb2.Provenance())
            definition, details = provenance.build_definition, provenance.run_details
            for descriptor in [*definition.resolved_dependencies, *details.byproducts]:
                ResourceDescriptor.copy_from_pb(descriptor).validate()
            said["build_type"] = definition.build_type
            said["builder"] = details.builder.id
            said["invocation"] = details.metadata.invocation_id
            said["dependencies"] = [it.name for it in definition.resolved_dependencies]
            said["seconds"] = details.metadata.finished_on.seconds - details.metadata.started_on.seconds
        if statement.pb.predicate_type == AUDIT:
            # A type of this project's, of which the tools know no schema.
            said["verdict"] = predicate["verdict"]
        said["predicate_type"] = statement.pb.predicate_type
        said["subjects"] = [subject.name for subject in statement.pb.subject]
        said["keyid"] = ", ".join(accepted)
    except (json_format.ParseError, KeyError, ValueError) as error:
        raise Refused(f"in-toto-attestation: {error}") from error
    return said


def check_digests(arguments: argparse.Namespace) -> dict[str, Any]:
    _, payload = read_envelope(arguments.file)
    statement = json.loads(payload)
    checked = []
    described = statement["subject"] + statement["predicate"].get("buildDefinition", {}).get("resolvedDependencies", [])
    for subject in described:
        path = arguments.folder / subject["name"]
        if not path.is_file() or "sha256" not in subject["digest"]:
            continue
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
        if actual != subject["digest"]["sha256"]:
            raise Refused(f"sha256sum: {path} has {actual}, the statement says {subject['digest']['sha256']}")
        checked.append(subject["name"])
    return {"checked": checked}


def check_model(arguments: argparse.Namespace) -> dict[str, Any]:
    program = pathlib.Path(sys.executable).with_name("model_signing")
    command = [program, "verify", "key", arguments.folder, "--signature", arguments.signature]
    command += ["--public_key", arguments.public]
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    said = " ".join((finished.stdout + finished.stderr).split())
    if "Verification failed" in said:
        raise Refused(f"model_signing: {said}")
    if finished.returncode != 0:
        raise OSError(f"{program} could not run: {said}")
    return {"said": said}


def check_crate(arguments: argparse.Namespace) -> dict[str, Any]:
    from rocrate.rocrate import ROCrate

    try:
        crate = ROCrate(arguments.folder)
    except (KeyError, ValueError) as error:
        raise Refused(f"rocrate: {error!r}") from error
    actions = {}
    for action in crate.get_by_type("CreateAction"):
        status = action.get("actionStatus")
        name = status if isinstance(status, str) else status.id
        actions[action.id] = {"error": action.get("error"), "status": name.rsplit("/", 1)[-1]}
    issues = validate_crate(arguments.folder)
    required = [text for severity, text in issues if severity == "REQUIRED"]
    if required:
        raise Refused(f"roc-validator: {'; '.join(required)}")
    return {
        "actions": actions,
        "files": sorted(entity.id for entity in crate.data_entities),
        "name": crate.name,
        "recommendations": [text for _, text in issues],
    }


def validate_crate(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Severity and text of what `roc-validator` finds."""
    import requests
    import requests_cache
    import rocrate
    from requests.adapters import BaseAdapter

    terms = pathlib.Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld"

    class Terms(BaseAdapter):
        """Answers every address with the terms."""

        def send(self, request, **_unused):  # type: ignore[no-untyped-def]
            import io

            from urllib3.response import HTTPResponse

            body = io.BytesIO(terms.read_bytes())
            headers = {"Content-Type": "application/ld+json"}
            raw = HTTPResponse(body=body, headers=headers, status=200, preload_content=False)
            return requests.adapters.HTTPAdapter().build_response(request, raw)

        def close(self) -> None:
            pass

    with tempfile.TemporaryDirectory() as scratch:
        cache = pathlib.Path(scratch) / "cache"
        session = requests_cache.CachedSession(cache_name=str(cache), backend="sqlite", expire_after=-1)
        session.mount("https://", Terms())
        session.get(CONTEXT_URL).raise_for_status()
        session.close()
        from rocrate_validator import services
        from rocrate_validator.models import Severity, ValidationSettings

        settings = ValidationSettings(
            rocrate_uri=str(folder),
            profile_identifier="process-run-crate",
            requirement_severity=Severity.RECOMMENDED,
            cache_path=cache,
            offline=True,
        )
        result = services.validate(settings)
        return [
            (issue.severity.name, f"{issue.check.identifier} {issue.message} [{issue.violatingEntity}]")
            for issue in result.get_issues()
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    dsse = verbs.add_parser("dsse")
    dsse.add_argument("file", type=pathlib.Path)
    dsse.add_argument("--public", required=True, help="64 hex digits")
    dsse.set_defaults(ask=check_dsse)
    digests = verbs.add_parser("digests")
    digests.add_argument("file", type=pathlib.Path)
    digests.add_argument("--folder", type=pathlib.Path, required=True)
    digests.set_defaults(ask=check_digests)
    model = verbs.add_parser("model")
    model.add_argument("folder", type=pathlib.Path)
    model.add_argument("--signature", type=pathlib.Path, required=True)
    model.add_argument("--public", type=pathlib.Path, required=True)
    model.set_defaults(ask=check_model)
    crate = verbs.add_parser("crate")
    crate.add_argument("folder", type=pathlib.Path)
    crate.set_defaults(ask=check_crate)
    return tell(parser)


if __name__ == "__main__":
    sys.exit(main())
