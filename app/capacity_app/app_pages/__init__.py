"""The dashboard's pages: plain scripts that the router runs."""
