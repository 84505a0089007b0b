"""Deployments under varying load: latency by request rate, highest rate that meets the SLO, replicas for each hour."""
