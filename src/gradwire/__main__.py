"""`python -m gradwire` is `gradwire`."""

from gradwire.cli import app

if __name__ == "__main__":
    app(prog_name="gradwire")
