// A driver, as cuDNN loads one to make plans: it takes the kernels that cuDNN compiled without looking at them, and for
// all else there is no GPU.
namespace {
constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;
constexpr int kVersion = 13000;
int library = 0;
}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
int cuLibraryLoadData(void** made, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *made = &library;
  return kSuccess;
}
int cuLibraryGetKernel(void** made, void* of, const char*) {
  *made = of;
  return kSuccess;
}
int cuLibraryUnload(void*) { return kSuccess; }
int cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }

int cuInit(unsigned) { return kNoDevice; }
int cuCtxGetCurrent() { return kNoDevice; }
int cuCtxGetDevice() { return kNoDevice; }
int cuCtxGetLimit() { return kNoDevice; }
int cuCtxPopCurrent() { return kNoDevice; }
int cuCtxPushCurrent() { return kNoDevice; }
int cuDeviceGet() { return kNoDevice; }
int cuDeviceGetAttribute() { return kNoDevice; }
int cuDeviceGetCount() { return kNoDevice; }
int cuDevicePrimaryCtxRelease() { return kNoDevice; }
int cuDevicePrimaryCtxReset() { return kNoDevice; }
int cuDevicePrimaryCtxRetain() { return kNoDevice; }
int cuFuncGetAttribute() { return kNoDevice; }
int cuFuncSetAttribute() { return kNoDevice; }
int cuGetErrorName() { return kNoDevice; }
int cuGetErrorString() { return kNoDevice; }
int cuKernelGetAttribute() { return kNoDevice; }
int cuKernelGetFunction() { return kNoDevice; }
int cuLaunchCooperativeKernel() { return kNoDevice; }
int cuLaunchKernel() { return kNoDevice; }
int cuLaunchKernelEx() { return kNoDevice; }
int cuLibraryLoadFromFile() { return kNoDevice; }
int cuLinkAddData() { return kNoDevice; }
int cuLinkAddData_v2() { return kNoDevice; }
int cuLinkAddFile_v2() { return kNoDevice; }
int cuLinkComplete() { return kNoDevice; }
int cuLinkCreate() { return kNoDevice; }
int cuLinkCreate_v2() { return kNoDevice; }
int cuLinkDestroy() { return kNoDevice; }
int cuMemcpyDtoH_v2() { return kNoDevice; }
int cuModuleGetFunction() { return kNoDevice; }
int cuModuleGetGlobal_v2() { return kNoDevice; }
int cuModuleLoadData() { return kNoDevice; }
int cuModuleLoadDataEx() { return kNoDevice; }
int cuModuleLoadFatBinary() { return kNoDevice; }
int cuModuleUnload() { return kNoDevice; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor() { return kNoDevice; }
int cuOccupancyMaxPotentialClusterSize() { return kNoDevice; }
int cuStreamGetCtx() { return kNoDevice; }
int cuStreamSynchronize() { return kNoDevice; }
int cuTensorMapEncodeTiled() { return kNoDevice; }

}  // extern "C"
