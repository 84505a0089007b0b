"""The pages: plain scripts, run by the router."""
