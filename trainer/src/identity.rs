//! Who this binary is: the digest of its code that the build script embedded,
//! the environment that it was built for, and the plan that it would run.
//!
//! Nothing here reads a working tree: what runs is what was built. CPU
//! features are detected when asked, because they decide which kernels run and
//! therefore which bits come out.

use schemas::contract::{Code, CompilerPlan, Device, Environment};
use schemas::digest::{Digest, decode_hex};
use serde::{Deserialize, Serialize};

/// What `trainer identity` prints and a contract freezes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The code, by digest.
    pub code: Code,
    /// What it was built with and runs on.
    pub environment: Environment,
    /// The plan of one device.
    pub plan: CompilerPlan,
}

/// Package name in [`Code`].
const PACKAGE: &str = "trainer";

/// Whether kernels are picked by timing, which would make bits depend on the
/// day. burn does so where it is built with its feature `autotune`. A crate
/// cannot ask how another was built, so that this is stated here, and
/// `workspace::no_feature_lets_burn_choose_kernels_by_timing` in `tests/system`
/// holds that the feature is off in every combination.
const AUTOTUNE: bool = false;

/// The identity of this binary, running here, on one device.
///
/// Whether the device was compiled in is not judged here; opening it is.
#[must_use]
pub fn identity(device: Device) -> Identity {
    Identity { code: code(), environment: environment(), plan: plan(device) }
}

/// The code of this binary.
#[must_use]
pub fn code() -> Code {
    Code {
        digest: Digest::sha256(embedded_digest()),
        features: features(),
        package: PACKAGE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The embedded digest. The build script writes 64 hex digits; anything else
/// cannot be a build of this crate.
fn embedded_digest() -> [u8; 32] {
    decode_hex(env!("TRAINER_CODE_DIGEST"))
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
        .unwrap_or([0; 32])
}

/// Cargo features that were compiled in, in alphabetical order.
#[must_use]
pub fn features() -> Vec<String> {
    env!("TRAINER_FEATURES").split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// What the binary was built with and runs on.
#[must_use]
pub fn environment() -> Environment {
    Environment {
        architecture: std::env::consts::ARCH.to_owned(),
        operating_system: std::env::consts::OS.to_owned(),
        rustc: env!("TRAINER_RUSTC").to_owned(),
    }
}

/// The plan of one device on this machine.
#[must_use]
pub fn plan(device: Device) -> CompilerPlan {
    CompilerPlan {
        autotune: AUTOTUNE,
        backend: backend(device).to_owned(),
        cpu_features: cpu_features(),
        device,
    }
}

/// Package and locked version that executes tensors on a device.
const fn backend(device: Device) -> &'static str {
    match device {
        Device::Cpu => env!("TRAINER_BURN_FLEX"),
        Device::Wgpu => env!("TRAINER_BURN_WGPU"),
        Device::Cuda => env!("TRAINER_BURN_CUDA"),
    }
}

/// Program and version, for the `tool` fields of entries.
#[must_use]
pub fn tool() -> String {
    format!("{PACKAGE} {}", env!("CARGO_PKG_VERSION"))
}

/// Features that the kernels of `gemm` and `macerator` dispatch on.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
#[must_use]
pub fn cpu_features() -> Vec<String> {
    macro_rules! detected {
        ($($name:tt),*) => {
            [$(($name, std::is_x86_feature_detected!($name))),*]
                .into_iter()
                .filter(|(_, present)| *present)
                .map(|(name, _)| name.to_owned())
                .collect()
        };
    }
    detected!(
        "avx",
        "avx2",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512f",
        "avx512fp16",
        "avx512vl",
        "bmi1",
        "bmi2",
        "f16c",
        "fma",
        "lzcnt",
        "popcnt",
        "sse3",
        "sse4.1",
        "sse4.2",
        "ssse3"
    )
}

/// Features that the kernels of `gemm` and `macerator` dispatch on.
#[cfg(target_arch = "aarch64")]
#[must_use]
pub fn cpu_features() -> Vec<String> {
    macro_rules! detected {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_aarch64_feature_detected!($name))),*]
                .into_iter()
                .filter(|(_, present)| *present)
                .map(|(name, _)| name.to_owned())
                .collect()
        };
    }
    detected!("fcma", "fp16", "neon")
}

/// No kernel dispatches on features of other architectures.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
#[must_use]
pub fn cpu_features() -> Vec<String> {
    Vec::new()
}

/// Model name of the processor, for people; `unknown` where the system does
/// not say.
#[must_use]
pub fn cpu_model() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_script_embedded_a_digest_and_a_compiler() {
        assert_ne!(code().digest.bytes, [0; 32]);
        assert!(environment().rustc.starts_with("rustc 1."), "{}", environment().rustc);
        assert!(backend(Device::Cpu).starts_with("burn-flex 0."), "{}", backend(Device::Cpu));
    }

    #[test]
    fn cpu_features_are_in_alphabetical_order() {
        let features = cpu_features();
        let mut sorted = features.clone();
        sorted.sort();
        assert_eq!(features, sorted);
    }
}
