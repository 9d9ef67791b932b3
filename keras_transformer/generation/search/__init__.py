"""Search strategies: greedy, sampling, beam, contrastive, speculative."""
