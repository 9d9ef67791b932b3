"""Convert pipelines to models of CTranslate2."""
