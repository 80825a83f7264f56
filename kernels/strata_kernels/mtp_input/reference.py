"""The joined input of the MTP head (DeepSeek-V3, 2024, section 2.2): a hidden row and the token after it."""

import torch
import torch.nn.functional as F
from torch import Tensor

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
    both = torch.cat((lookup(pool, rows.tokens), x.float()), 1).view(-1, 2, params.hidden)
    scales = torch.stack((weights.embedding_norm, weights.hidden_norm))
    normed = F.rms_norm(both, (params.hidden,), None, params.eps).mul_(scales)
    return product(normed.view(-1, 2 * params.hidden).to(x.dtype), [weights.join], rows.count)
