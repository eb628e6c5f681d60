"""How `scripts/faults` prints what it found: one line a cell."""

HEADER = [
    "fault", "phase", "step", "worker", "seed", "fired", "trainer", "audit alone", "withheld: trainer", "withheld: audit",
    "attributed to", "outcome", "steps lost", "recovery s", "",
]


def of_validator(found):
    """What the audit saw in a mode; a stop of an attempt changes no verdict, and is called that."""
    if found is None:
        return ""
    if found.get("probe"):
        return "probe"
    codes = " ".join(found.get("validator", [])) or "NONE"
    if not found.get("is_stop"):
        return codes
    return f"{codes} (stop)" + ("; cause: trainer's word" if found.get("is_told_by_trainer_alone") else "")


def summary(row):
    """The cells of a line."""
    modes = row["modes"]
    first = modes.get("detectors") or modes.get("withheld detectors") or {}
    fired = sum(bool(found.get("fired")) for found in modes.values())
    attributed = sorted({found.get("attributed") or "-" for found in modes.values()})
    number = lambda value, form: "" if value is None else format(value, form)
    return [
        row["fault"], row["phase"], str(row["step"]), number(row["worker"], "d"), str(row["seed"]), f"{fired}/{len(modes)}",
        "; ".join(first.get("trainer", [])), of_validator(modes.get("audit")),
        "; ".join((modes.get("withheld detectors") or {}).get("trainer", [])), of_validator(modes.get("withheld audit")),
        ", ".join(attributed), first.get("outcome", ""), number(first.get("steps lost"), "d"),
        number(first.get("recovery s"), ".2f"), "ok" if not row["problems"] else "FAILED",
    ]


def print_tables(rows):
    """A table a policy, in Markdown."""
    for recovery in dict.fromkeys(row["recovery"] for row in rows):
        lines = [HEADER] + [summary(row) for row in rows if row["recovery"] == recovery]
        print(f"Recovery: `{recovery}`\n")
        print("\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(HEADER), *lines[1:]]) + "\n")
