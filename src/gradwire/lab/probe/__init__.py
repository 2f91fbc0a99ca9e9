"""Measurements of links, codecs and models, among workers that are joined already."""
