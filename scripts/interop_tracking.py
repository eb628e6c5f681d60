#!/usr/bin/env python3
"""Shows exports to the tools that read metrics, and prints what each of them
read, as one JSON object. Nothing of this project is used.

`openmetrics FILE`: `prometheus-client`'s OpenMetrics parser.

`mlperf FILE [--ruleset 6.1.0]`: MLCommons' `mlperf-logging` parses the lines and
checks them against its rules for training. `complaints` is what it refuses.

`mlflow --url URL --experiment NAME`: MLflow's own client reads every run of the
experiment back, with all points of all metrics.

Numbers are printed as Python spells them, which reads back to the same bits.

Exit codes: 0 the tool read it; 1 the tool refused it; 2 it could not run.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pathlib
import sys
from typing import Any


class Refused(Exception):
    """What a tool said against an export."""


def openmetrics(arguments: argparse.Namespace) -> dict[str, Any]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    text = arguments.file.read_text(encoding="utf-8")
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError) as error:
        raise Refused(f"prometheus-client: {error}") from error
    return {
        "families": [
            {
                "name": family.name,
                "samples": [
                    {
                        "labels": sample.labels,
                        "name": sample.name,
                        "time_us": None
                        if sample.timestamp is None
                        else sample.timestamp.sec * 1_000_000 + sample.timestamp.nsec // 1000,
                        "value": repr(float(sample.value)),
                    }
                    for sample in family.samples
                ],
                "type": family.type,
                "unit": family.unit,
            }
            for family in families
        ]
    }


def mlperf(arguments: argparse.Namespace) -> dict[str, Any]:
    from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

    # What the checker has to say is taken from it, and not from its log.
    logging.disable(logging.CRITICAL)
    lines, errors = mlp_parser.parse_file(str(arguments.file), ruleset=arguments.ruleset)
    checker = mlp_compliance.make_checker("training", arguments.ruleset, quiet=False, werror=False)
    try:
        checker.check_file(str(arguments.file), f"training_{arguments.ruleset}/common.yaml")
    except FileNotFoundError as error:
        # It has no rules for a benchmark that is none of MLPerf's: it says so, and
        # then opens the file all the same. By then everything else was checked.
        if not any(text.startswith("Could not find config file") for text in checker.not_overwritable):
            raise Refused(f"mlperf-logging: {error}") from error
    complaints = {key: text.splitlines()[0] for key, text in checker.overwritable.items()}
    for index, text in enumerate(checker.not_overwritable):
        is_missing = text.startswith("Could not find config file")
        complaints["rules_of_benchmark" if is_missing else str(index)] = (
            f"there is no {pathlib.PurePath(text).name}" if is_missing else text
        )
    said = {
        "complaints": complaints,
        "lines": [
            {"key": line.key, "time_ms": line.timestamp, **line.value} for line in lines
        ],
        "parse_errors": [text for _, text in errors],
        "warnings": checker.warnings,
    }
    if errors or not lines:
        raise Refused(f"mlperf-logging: {said['parse_errors'] or 'no log lines'}")
    return said


def mlflow(arguments: argparse.Namespace) -> dict[str, Any]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=arguments.url)
    experiment = client.get_experiment_by_name(arguments.experiment)
    if experiment is None:
        raise Refused(f"MLflow has no experiment {arguments.experiment}")
    runs = []
    for run in client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]):
        history = {
            key: [
                [point.step, point.timestamp, repr(point.value)]
                for point in client.get_metric_history(run.info.run_id, key)
            ]
            for key in sorted(run.data.metrics)
        }
        runs.append(
            {
                "end_ms": run.info.end_time,
                "history": history,
                "id": run.info.run_id,
                "params": run.data.params,
                "start_ms": run.info.start_time,
                "status": run.info.status,
                "tags": run.data.tags,
            }
        )
    return {"runs": runs}


def verdicts(families: list[dict[str, Any]]) -> list[str]:
    """What the metrics say that the audit said: the states that are set."""
    name = "governed_ledger_verdict"
    states = [sample for family in families if family["name"] == name for sample in family["samples"]]
    return [state["labels"][name] for state in states if float(state["value"]) == 1.0]


def summary(said: dict[str, Any]) -> dict[str, Any]:
    """The same for people: counts instead of points, and what it says of the run."""
    if "families" in said:
        families = said["families"]
        return {
            "verdicts": verdicts(families),
            "families": len(families),
            "samples": sum(len(family["samples"]) for family in families),
            "types": sorted({family["type"] for family in families}),
        }
    if "lines" in said:
        stops = [line["metadata"]["status"] for line in said["lines"] if line["key"] == "run_stop"]
        return {
            "stops": stops,
            "complaints": said["complaints"],
            "lines": len(said["lines"]),
            "warnings": said["warnings"],
        }
    return {
        "verdicts": sorted({str(run["tags"].get("governed_ledger.verdict")) for run in said["runs"]}),
        "runs": [
            {
                "attempt": run["tags"].get("governed_ledger.attempt"),
                "metrics": len(run["history"]),
                "params": len(run["params"]),
                "points": sum(len(points) for points in run["history"].values()),
                "status": run["status"],
                "verdict": run["tags"].get("governed_ledger.verdict"),
            }
            for run in said["runs"]
        ]
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--summary", action="store_true", help="counts instead of everything")
    commands = parser.add_subparsers(dest="tool", required=True)
    command = commands.add_parser("openmetrics")
    command.add_argument("file", type=pathlib.Path)
    command.set_defaults(run=openmetrics)
    command = commands.add_parser("mlperf")
    command.add_argument("file", type=pathlib.Path)
    command.add_argument("--ruleset", default="6.1.0")
    command.set_defaults(run=mlperf)
    command = commands.add_parser("mlflow")
    command.add_argument("--url", required=True)
    command.add_argument("--experiment", required=True)
    command.set_defaults(run=mlflow)
    arguments = parser.parse_args()
    try:
        said = arguments.run(arguments)
    except Refused as refused:
        print(json.dumps({"refused": str(refused)}))
        print(refused, file=sys.stderr)
        return 1
    except (ImportError, OSError) as error:
        print(f"{arguments.tool} could not be asked: {error}", file=sys.stderr)
        return 2
    if arguments.summary:
        print(json.dumps(summary(said), indent=1))
    else:
        print(json.dumps(said, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
