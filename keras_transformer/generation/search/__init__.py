"""Search strategies: greedy, sampling, beam, contrastive and speculative."""
