"""Recall beyond single pairs: compound and rewritten keys, chains, contexts, trees and vectors."""
