# cuda.tile reads a kernel's source in its file, and `ct` among the names of that.
import cuda.tile as ct


@ct.kernel
def add_one(src, dst):
    ct.store(dst, index=(0,), tile=ct.load(src, index=(0,), shape=(1,)) + 1)
