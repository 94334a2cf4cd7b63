"""The page of the documentation with the table of damage."""

from tests.damage.table import KILLED, STOPPED, DamageTable
from tests.damage.trials import DamageOutcome

_HOW = {"bits": "one bit flipped", "lengths": "truncated"}

_MEANINGS = {
    DamageOutcome.SAME: "The damage is in a place that no answer depends on.",
    DamageOutcome.REBUILT: "The broker made the file again from the log, and logged a warning.",
    DamageOutcome.READER_REFUSED: (
        "The broker starts. A reader of the damaged batch, or of the one before it, gets CORRUPT_MESSAGE, and the "
        "broker logs the file's name. All other answers are the same."
    ),
    DamageOutcome.START_REFUSED: "The broker does not start. The message has one line, and names the file.",
    DamageOutcome.CUT: (
        "The broker removes the damaged batch and what follows it in this log, and logs a warning: see "
        "[below](#damage-behind-the-recovery-point)."
    ),
    DamageOutcome.SHORTER: (
        "The file ends where a batch ends, behind the last recovery point. A power cut leaves such a file if what "
        "followed was never on disk, so the broker does not notice: see [below](#damage-behind-the-recovery-point)."
    ),
    DamageOutcome.WRONG: "There must be none.",
}

_INTRODUCTION = """# Damage

Written by `{command}`.

A disk can return other bytes than it was given. This page shows what the broker makes of that. One bit of one file is
flipped, or one file is truncated. Then the broker is started, and everything that clients can ask for is compared with
the answers from the undamaged directory: every batch, look-ups by time, LSO, transactions, producers, offsets of
groups, topics, settings, ACLs and credentials. Then the broker is stopped and started once more, and must answer the
same. {trials} `.lock` is empty: nothing in it can be damaged.
"""

_EVERY = "{count:,} damages were tried: every bit, and every length, of each\nfile."
_SAMPLE = """\
{count:,} damages were tried, a sample for each kind of file; in logs the headers of
batches have a sample of their own. `--every` tries every bit and every length."""

_AFTER = {
    STOPPED: "A clean stop stores the end of every log as its recovery point. Nothing below that point is ever cut.",
    KILLED: (
        "The broker was killed. All its records were acknowledged, and some of them follow the last recovery point,\n"
        "which is stored at a clean stop, when a segment is sealed, and every 64 MiB."
    ),
}

_END = """## Damage behind the recovery point

After a kill or a power cut, the end of a log may be torn: the last batches were written in part, or not at all. The
broker cannot tell a torn batch from a damaged one. At the first batch with a wrong checksum or a wrong offset it cuts
the log, and logs a warning with the log's name and the number of bytes that it removed. If that batch had been
acknowledged and the disk has damaged it since, **acknowledged records are lost**, and this warning is the only sign. If
the file has become shorter, and ends where a batch ends, there is no sign at all. It takes two failures: a kill or a
power cut, and damage to what was written since the last recovery point of this log. A sealed segment is never cut, and
neither is anything below the recovery point.

Apache Kafka does the same to a log after an unclean stop, and then copies what is missing from other replicas. This
broker has none. A kill alone tears at most the batch that was being written. So if the warning appears, the machine has
not lost power, and more than one batch is missing, restore the directory from a [copy](../backup.md).
"""


def markdown(table: DamageTable, command: str, *, is_sample: bool = True) -> str:
    """The page.

    :param command: the command that writes it.
    :param is_sample: False if every bit and every length was tried.
    """
    trials = (_SAMPLE if is_sample else _EVERY).format(count=table.trials)
    lines = [_INTRODUCTION.format(command=command, trials=trials)]
    lines += ["| outcome | meaning |", "|---|---|"]
    lines += [f"| {outcome.value} | {meaning} |" for outcome, meaning in _MEANINGS.items()]
    for state, words in _AFTER.items():
        lines += ["", f"## {state[0].upper()}{state[1:]}", "", words, ""]
        headings = ["file", "damage", *(outcome.value for outcome in DamageOutcome)]
        lines += ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
        for (row_state, kind, how), counts in table.rows():
            if row_state == state:
                cells = [kind, _HOW[how], *(str(count or "") for count in counts.values())]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _END])
