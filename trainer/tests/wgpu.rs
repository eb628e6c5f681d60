//! The wgpu backend with a tiny model: it learns, gives the same bits twice,
//! and agrees with the CPU up to rounding. Built only with the feature; runs on
//! software Vulkan.
#![cfg(feature = "wgpu")]

mod common;

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use common::{Fixture, decoder};
use schemas::contract::Device;
use trainer::engine::CapturedTensors;

const NUM_STEPS: usize = 6;

fn train(device: Device) -> Result<(Vec<f64>, f64, CapturedTensors)> {
    let folder = tempfile::tempdir()?;
    let mut fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    fixture.contract.plan.device = device;
    let mut engine = fixture.engine(folder.path())?;
    let go = AtomicBool::new(false);
    let mut losses = Vec::new();
    for _ in 0..NUM_STEPS {
        losses.push(engine.step(&go)?.context("nothing interrupts")?.loss);
    }
    let value = engine.evaluate(&fixture.contract.evaluation.streams[0], &go)?;
    Ok((losses, value.context("nothing interrupts")?.value, engine.capture()?))
}

#[test]
fn wgpu_learns_repeats_itself_and_agrees_with_the_cpu() -> Result<()> {
    assert!(trainer::device::compiled_in().contains(&Device::Wgpu));
    let (losses, value, state) = train(Device::Wgpu)?;
    assert!(losses[NUM_STEPS - 1] < losses[0] - 0.05, "{losses:?}");
    let (again, value_again, state_again) = train(Device::Wgpu)?;
    assert_eq!(losses, again);
    assert_eq!(value.to_bits(), value_again.to_bits());
    assert_eq!(state, state_again);
    let (cpu, cpu_value, cpu_state) = train(Device::Cpu)?;
    for (wgpu, cpu) in losses.iter().zip(&cpu) {
        assert!((wgpu - cpu).abs() < 1e-3, "wgpu {losses:?}, cpu {cpu:?}");
    }
    assert!((value - cpu_value).abs() < 1e-3, "wgpu {value}, cpu {cpu_value}");
    assert_ne!(state, cpu_state, "two backends that never differ in a bit would be one backend");
    Ok(())
}
