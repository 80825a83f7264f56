"""What slots remember: pages and keys and values, recurrent state, prefixes; `slots.SlotCache` is the whole of it."""
