"""Write examples/first_model.ipynb, with its outputs, from first_model.py: python docs/notebook.py (two minutes)."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

SCRIPT = Path(__file__).parents[1] / "examples/first_model.py"


def notebook(script: str) -> NotebookNode:
    """Return a script in cells (`# %%`, `# %% [markdown]`) as a notebook without outputs."""
    cells = []
    for number, (kind, text) in enumerate(re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", script, re.M | re.S)):
        source = re.sub(r"^# ?", "", text, flags=re.M) if kind else text
        new = nbformat.v4.new_markdown_cell if kind else nbformat.v4.new_code_cell
        cells.append(new(source.strip(), id=f"cell-{number}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def main() -> None:
    book = notebook(SCRIPT.read_text())
    metadata = dict(book.metadata)
    with TemporaryDirectory() as folder:
        NotebookClient(book, timeout=600, resources={"metadata": {"path": folder}}).execute()
    book.metadata = metadata
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":  # the standard error has paths of this machine
            printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
    nbformat.write(book, SCRIPT.with_suffix(".ipynb"))


if __name__ == "__main__":
    main()
