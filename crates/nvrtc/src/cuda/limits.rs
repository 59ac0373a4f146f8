//! What the device allows a launch.

use atomr_cuda_core::Result;
use atomr_cuda_core::executor::CudaSetup;
use atomr_cuda_core::executor::cuda::check_driver;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use crate::op::DeviceLimits;

/// Asks the driver.
pub(super) fn of(setup: &CudaSetup) -> Result<DeviceLimits> {
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: the place that is written outlives the call; the ordinal is the device's.
        let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, setup.ordinal) };
        check_driver("cuDeviceGetAttribute", status)?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(DeviceLimits {
        max_grid: [
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        max_block: [
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        max_threads: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        multiprocessor_threads: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        clusters: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0,
        cooperative: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0,
    })
}
