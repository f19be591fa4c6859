/* Devices: as many equal ones as EMULATED_DEVICES says. */
#include "emulator.h"

#include <stdio.h>
#include <string.h>

#define MEMORY_BYTES ((size_t)1 << 30)

bool is_device(CUdevice device) { return device >= 0 && device < device_count; }

#define ENTER_DEVICE(device) \
    ENTER();                 \
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE)

EXPORT CUresult cuDeviceGetCount(int *count) {
    ENTER();
    REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
    *count = device_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER_DEVICE(ordinal);
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    ENTER_DEVICE(device);
    snprintf(name, (size_t)size, "Emulated device %d", device);
    return CUDA_SUCCESS;
}

static void write_uuid(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    snprintf(uuid->bytes, sizeof uuid->bytes, "emulated-%d", device);
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ENTER_DEVICE(device);
    write_uuid(uuid, device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER_DEVICE(device);
    write_uuid(uuid, device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER_DEVICE(device);
    *bytes = MEMORY_BYTES;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    ENTER();
    struct context *context;
    TRY(current_context(&context));
    *unused = *total = MEMORY_BYTES;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    ENTER_DEVICE(device);
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
    ENTER_DEVICE(device);
    snprintf(text, (size_t)size, "0000:%02X:00.0", device + 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
    ENTER();
    unsigned domain, bus, slot, function;
    int read = sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function);
    REQUIRE(read == 4, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(is_device((int)bus - 1), CUDA_ERROR_INVALID_DEVICE);
    *device = (int)bus - 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned *mask, CUdevice device) {
    ENTER_DEVICE(device);
    (void)luid, (void)mask;
    return CUDA_ERROR_NOT_SUPPORTED; /* as on Linux */
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER_DEVICE(device);
    REQUIRE(is_device(peer), CUDA_ERROR_INVALID_DEVICE);
    *can = device != peer;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from,
                                        CUdevice to) {
    ENTER_DEVICE(from);
    REQUIRE(is_device(to) && from != to, CUDA_ERROR_INVALID_DEVICE);
    (void)attribute;
    *value = 1;
    return CUDA_SUCCESS;
}

static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
};

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    ENTER_DEVICE(device);
    REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
    *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? device + 1 : 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) *value = attributes[i].value;
    return CUDA_SUCCESS;
}
