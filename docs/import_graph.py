"""Draw which subpackages import which, as a Mermaid graph in architecture.md; exit with 1 on a cycle.

make import-graph
"""

import graphlib
import pathlib
import re
import sys

import grimp

PACKAGES = (
    "keras_transformer",
    "keras_transformer_cli",
    "keras_transformer_options",
    "keras_transformer_serving",
)
PAGE = pathlib.Path(__file__).with_name("architecture.md")


def subpackage(module: str) -> str | None:
    """Return the node of a module: its subpackage or, outside the first package, its package; None for `__init__`."""
    first, *rest = module.split(".")
    return first if first in PACKAGES[1:] else rest[0] if rest else None


def imports() -> dict[str, set[str]]:
    """Return the subpackages that each subpackage imports, inside functions too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        importer = subpackage(module)
        if importer is None:
            continue
        imported = {subpackage(name) for name in graph.find_modules_directly_imported_by(module)}
        found.setdefault(importer, set()).update(imported - {importer, None})
    return found


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out the imports that a longer path implies."""
    below: dict[str, set[str]] = {}
    for node in graphlib.TopologicalSorter(graph).static_order():
        below[node] = set().union(*({child} | below[child] for child in graph.get(node, ())))
    return {
        node: children - set().union(*(below[child] for child in children))
        for node, children in graph.items()
    }


def mermaid(graph: dict[str, set[str]]) -> str:
    """Return the graph as text, importers above what they import."""
    arrows = [f"    {node} --> {child}" for node in sorted(graph) for child in sorted(graph[node])]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def main() -> int:
    """Replace the graph between its two marks."""
    try:
        drawn = mermaid(reduced(imports()))
    except graphlib.CycleError as error:
        print("Subpackages import each other:", " → ".join(error.args[1]))
        return 1
    old = PAGE.read_text(encoding="utf-8")
    new = re.sub(r"(?s)(<!-- import graph -->\n).*(\n<!-- end -->)", lambda m: m[1] + drawn + m[2], old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
