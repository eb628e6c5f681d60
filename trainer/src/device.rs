//! Where tensors live: which backends were compiled in, and how one is opened.
//!
//! The CPU backend (`burn-flex`) is always there. `wgpu` and `cuda` are cargo
//! features, and a device that was not compiled in is refused by name: a run
//! never falls back to another device, because bits would differ without
//! anybody having said so.

use schemas::contract::Device as DeviceKind;

/// A device that tensors can be created on.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    kind: DeviceKind,
    device: burn::tensor::Device,
}

impl OpenDevice {
    /// Which backend it is.
    #[must_use]
    pub const fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// The handle that burn takes; without autodiff.
    #[must_use]
    pub(crate) const fn handle(&self) -> &burn::tensor::Device {
        &self.device
    }
}

/// A device that this binary cannot use.
#[derive(Debug, thiserror::Error)]
#[error("device {asked:?} was not compiled into this trainer, which has {}", compiled.join(", "))]
pub struct DeviceError {
    /// The device that was asked for.
    pub asked: &'static str,
    /// The devices that are there.
    pub compiled: Vec<&'static str>,
}

/// The devices that this binary was built with, the CPU first.
#[must_use]
pub const fn compiled_in() -> &'static [DeviceKind] {
    &[
        DeviceKind::Cpu,
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu,
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda,
    ]
}

/// Names of the devices that this binary was built with.
#[must_use]
pub fn names() -> Vec<&'static str> {
    compiled_in().iter().copied().map(name).collect()
}

/// Refuses a device that this binary was not built with.
///
/// # Errors
/// Names the device and those that are there.
pub fn check_compiled_in(kind: DeviceKind) -> Result<(), DeviceError> {
    if compiled_in().contains(&kind) {
        return Ok(());
    }
    Err(DeviceError { asked: name(kind), compiled: names() })
}

/// Name of a device in JSON and on the command line.
#[must_use]
pub const fn name(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Wgpu => "wgpu",
        DeviceKind::Cuda => "cuda",
    }
}

/// Opens a device.
///
/// # Errors
/// When the binary was built without it.
pub fn open(kind: DeviceKind) -> Result<OpenDevice, DeviceError> {
    let device = match kind {
        DeviceKind::Cpu => burn::tensor::Device::flex(),
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu => burn::tensor::Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => burn::tensor::Device::cuda(0),
        #[cfg(not(all(feature = "wgpu", feature = "cuda")))]
        _ => {
            return Err(DeviceError { asked: name(kind), compiled: names() });
        }
    };
    Ok(OpenDevice { kind, device })
}
