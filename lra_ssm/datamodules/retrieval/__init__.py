"""Retrieval: pairs of papers of the ACL Anthology Network, or made-up ones in their layout."""
