"""The engines of models of CTranslate2 of an export."""
