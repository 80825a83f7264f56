"""The joined input of the MTP head (DeepSeek-V3, 2024, section 2.2): a hidden row and the token after it."""

import torch
from torch import Tensor

from strata_kernels.norm import rms_norm
from strata_kernels.params import MtpInputParams, MtpInputWeights
from strata_kernels.product import lookup, product
from strata_kernels.weight import Weight
from strata_kernels.window import Rows


def mtp_input(
    x: Tensor, rows: Rows, pool: Weight, layer: int, weights: MtpInputWeights, params: MtpInputParams
) -> Tensor:
    """join(norm(embedding of rows.tokens), norm(x)), [R, D].

    x [R, D]: the hidden row of the token before each row. pool: the embedding, [V, D]. `layer` is not used.
    """
    embedded = rms_norm(lookup(pool, rows.tokens), weights.embedding_norm, params.eps).to(x.dtype)
    joined = torch.cat((embedded, rms_norm(x, weights.hidden_norm, params.eps)), 1)
    return product(joined, [weights.join], rows.count)
