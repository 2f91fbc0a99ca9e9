"""Behind `gradwire selftest`: does gradwire do on this machine what it should?

`kernel_calls` has the calls that kernels are compared by; `kernels`, `collectives`, `training` and
`speed` are what worker processes do; `stages` starts them and judges what they say.
"""
