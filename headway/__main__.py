"""`python -m headway`: how one command starts another, with the interpreter that it runs under itself."""

from headway.cli import main

main()
