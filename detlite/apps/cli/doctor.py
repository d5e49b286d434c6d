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
    from detlite.apps.doctor.operator_checks import operator_errors
    from detlite.ops import has_kernels

    print(describe())
    wrong = 0
    for device in devices():
        print(f"\noperators on {device}{'' if has_kernels(device) else ' (fallbacks)'}")
        for operator, error in operator_errors(device).items():
            print(f"  {operator:22} {error or 'correct'}")
            wrong += bool(error)
    print()
    problems = find_problems()
    for problem in problems:
        print(f"problem: {problem}")
    if wrong:
        print(
            f"problem: {wrong} operators are wrong: rebuild detlite for this torch (pip install "
            "--no-build-isolation --force-reinstall --no-deps), and if that does not help, report "
            "it with the output above"
        )
    elif not problems:
        print("no problems found")
    return 1 if wrong else 0
