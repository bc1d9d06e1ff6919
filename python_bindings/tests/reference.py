"""The public modules, which docs/site/public.py lists."""

import ast
import pathlib


def modules_of_the_reference() -> list[str]:
    root = pathlib.Path(__file__).resolve().parents[2]
    source = ast.parse((root / "docs" / "site" / "public.py").read_text())
    lists = [one for one in source.body if isinstance(one, ast.Assign)]
    (found,) = (one.value for one in lists if ast.unparse(one.targets[0]) == "MODULES")
    return list(ast.literal_eval(found))
