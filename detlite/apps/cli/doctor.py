"""List what is installed, test every operator, and explain how to fix problems.

    detlite doctor

Each operator runs on each device with a small input, and its result is compared with torchvision's
or a known one. The report on the system is torch's (torch.utils.collect_env).

Exit status: 0; 1 if an operator computes a wrong result.
"""

from argparse import Namespace

OPTIONS = ()


def run(args: Namespace) -> int:
    from detlite.apps.doctor.machine import describe, devices, find_problems
    from detlite.apps.doctor.operator_checks import print_checks

    print(describe())
    wrong = sum(map(print_checks, devices()))
    problems = find_problems()
    if wrong:
        problems.append(
            f"{wrong} operators are wrong: rebuild detlite for this torch (pip install "
            "--no-build-isolation --force-reinstall --no-deps), and if that does not help, report "
            "it with the output above"
        )
    lines = [f"problem: {problem}" for problem in problems] or ["no problems found"]
    print("", *lines, sep="\n")
    return 1 if wrong else 0
