"""Commands: thin, one file each; the table in `strata_cli.app` lists them."""
