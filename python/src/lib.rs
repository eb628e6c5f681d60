//! The native half of the Python package `governed_ledger`.
//!
//! It turns Python's values into those of [`loops`] and its errors into one
//! exception with the remedy, and does nothing else. The interpreter's lock is
//! released wherever the recorder works or waits. Bytes of tensors are copied
//! once, under the lock, since Python may change them afterwards.
//!
//! An attempt belongs to the process that began it. A forked child has a copy of
//! its memory without the thread that writes, so every call there is refused, and
//! the copy is neither ended nor freed: either would wait for that thread for ever.

// What PyO3's macros expand to.
#![allow(unsafe_code, clippy::needless_pass_by_value, reason = "PyO3 takes arguments by value")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use loops::{Attempt, Evaluation, GroupStep, LoopError, LoopOptions, NamedTensor, Run, Step};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use schemas::body::ObservedFault;

create_exception!(
    governed_ledger,
    LedgerError,
    PyException,
    "What keeps a loop from being recorded; `hint` says what to do about it."
);

/// The exception for an error: its message and, below it, the remedy.
fn raise(error: LoopError) -> PyErr {
    raise_text(&error.chain(), error.hint())
}

fn raise_text(message: &str, hint: &str) -> PyErr {
    let exception = LedgerError::new_err(format!("{message}\nhint: {hint}"));
    Python::attach(|python| {
        // An exception without the member still says both.
        let _ = exception.value(python).setattr("hint", hint);
    });
    exception
}

/// Name, dtype, shape and little-endian bytes of a tensor.
type Tensor<'py> = (String, String, Vec<u64>, Bound<'py, PyBytes>);

fn tensor(given: (String, String, Vec<u64>, Vec<u8>)) -> NamedTensor {
    let (name, dtype, shape, bytes) = given;
    NamedTensor { bytes, dtype, name, shape }
}

fn tensors<'py>(python: Python<'py>, tensors: Vec<NamedTensor>) -> Vec<Tensor<'py>> {
    let tensors = tensors.into_iter();
    tensors
        .map(|tensor| {
            let bytes = PyBytes::new(python, &tensor.bytes);
            (tensor.name, tensor.dtype, tensor.shape, bytes)
        })
        .collect()
}

/// One update of a parameter group: name, rate, coefficient, decay, norm of the
/// parameters and of the change.
type Group = (String, f64, f64, f64, Option<f64>, Option<f64>);

/// A running attempt of a run.
#[pyclass(module = "governed_ledger._native")]
struct NativeAttempt {
    /// Taken out by the drop alone.
    attempt: Option<Attempt>,
    /// Process that began it.
    process: u32,
}

impl NativeAttempt {
    /// The attempt, in the process that began it.
    fn here(&self) -> PyResult<&Attempt> {
        match &self.attempt {
            Some(attempt) if self.process == std::process::id() => Ok(attempt),
            _ => Err(elsewhere(self.process)),
        }
    }

    /// [`Self::here`], to be changed.
    fn here_mut(&mut self) -> PyResult<&mut Attempt> {
        match &mut self.attempt {
            Some(attempt) if self.process == std::process::id() => Ok(attempt),
            _ => Err(elsewhere(self.process)),
        }
    }
}

impl Drop for NativeAttempt {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Of a forked child: its parent's thread and lock are not the child's.
            std::mem::forget(self.attempt.take());
        }
    }
}

/// The exception for a call in a process that was forked from the loop's.
fn elsewhere(process: u32) -> PyErr {
    raise_text(
        &format!(
            "process {process} began the attempt, and process {} was forked from it and cannot record",
            std::process::id()
        ),
        "call it in the process that began it, and give child processes what they need as values",
    )
}

#[pymethods]
impl NativeAttempt {
    /// Opens a run's ledger and starts an attempt.
    #[staticmethod]
    #[pyo3(signature = (ledger, backend, runtime, num_threads, keys=None, program=None, restart=false))]
    #[allow(clippy::too_many_arguments, reason = "each is one thing that the loop says of itself")]
    fn begin(
        python: Python<'_>,
        ledger: PathBuf,
        backend: String,
        runtime: String,
        num_threads: u32,
        keys: Option<PathBuf>,
        program: Option<PathBuf>,
        restart: bool,
    ) -> PyResult<Self> {
        let options = LoopOptions {
            backend,
            device: None,
            keys,
            ledger,
            may_restart: restart,
            num_threads,
            program,
            runtime,
        };
        let attempt = python.detach(|| Run::open(options).and_then(Run::begin)).map_err(raise)?;
        Ok(Self { attempt: Some(attempt), process: std::process::id() })
    }

    /// Process that began it; the only thing that a forked child is told.
    #[getter]
    fn process(&self) -> u32 {
        self.process
    }

    /// Number of the attempt, from 1.
    #[getter]
    fn number(&self) -> PyResult<u32> {
        Ok(self.here()?.number())
    }

    /// The run's identifier.
    #[getter]
    fn run_id(&self) -> PyResult<&str> {
        Ok(self.here()?.run_id())
    }

    /// The frozen contract as JSON.
    #[getter]
    fn contract_json(&self) -> PyResult<String> {
        serde_json::to_string(self.here()?.contract())
            .map_err(|error| LedgerError::new_err(error.to_string()))
    }

    /// The policy card as JSON.
    #[getter]
    fn card_json(&self) -> PyResult<String> {
        serde_json::to_string(self.here()?.card()).map_err(|error| LedgerError::new_err(error.to_string()))
    }

    /// Completed updates on record.
    #[getter]
    fn last_step(&self) -> PyResult<u64> {
        Ok(self.here()?.last_step())
    }

    /// Whether it has ended on record.
    #[getter]
    fn is_over(&self) -> PyResult<bool> {
        Ok(self.here()?.is_over())
    }

    /// What could not be cleaned up behind earlier attempts.
    #[getter]
    fn warnings(&self) -> PyResult<Vec<String>> {
        Ok(self.here()?.warnings().to_vec())
    }

    /// The checkpoint that it begins from: name, step, position; `None` for the
    /// initial state.
    fn resumed(&self) -> PyResult<Option<(String, u64, u64)>> {
        let Some(resumed) = self.here()?.resumed() else { return Ok(None) };
        let position = resumed.position().map_err(raise)?;
        Ok(Some((resumed.checkpoint().to_owned(), resumed.step(), position)))
    }

    /// The saved parameters and optimizer state of that checkpoint.
    fn resumed_tensors<'py>(
        &self,
        python: Python<'py>,
    ) -> PyResult<Option<(Vec<Tensor<'py>>, Vec<Tensor<'py>>)>> {
        let Some(resumed) = self.here()?.resumed() else { return Ok(None) };
        let (model, optimizer) =
            python.detach(|| Ok((resumed.model()?, resumed.optimizer()?))).map_err(raise)?;
        Ok(Some((tensors(python, model), tensors(python, optimizer))))
    }

    /// What is due before the next update: streams to evaluate, whether to save,
    /// whether there is none.
    fn due(&self) -> PyResult<(Vec<String>, bool, bool)> {
        let due = self.here()?.due();
        Ok((due.evaluations, due.checkpoint, due.is_last))
    }

    /// The policy card's groups: name, decay, paths of the parameters.
    fn groups(&self) -> PyResult<Vec<(String, f64, Vec<String>)>> {
        Ok(self.here()?.groups())
    }

    /// Rate of a group at a step.
    fn learning_rate(&self, group: &str, step: u64) -> PyResult<f64> {
        self.here()?.learning_rate(group, step).map_err(raise)
    }

    /// What gradients of this norm are multiplied by.
    fn clip_coefficient(&self, gradient_norm: f64) -> PyResult<f64> {
        Ok(self.here()?.clip_coefficient(gradient_norm))
    }

    /// Bytes of the examples at positions of the update stream.
    fn batch<'py>(
        &mut self,
        python: Python<'py>,
        position: u64,
        num_examples: u64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let attempt = self.here_mut()?;
        let examples = python.detach(|| attempt.batch(position, num_examples)).map_err(raise)?;
        Ok(examples.iter().map(|example| PyBytes::new(python, example)).collect())
    }

    /// Bytes of the examples that a stream evaluates.
    fn stream_examples<'py>(&self, python: Python<'py>, stream: &str) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let attempt = self.here()?;
        let examples = python.detach(|| attempt.stream_examples(stream)).map_err(raise)?;
        Ok(examples.iter().map(|example| PyBytes::new(python, example)).collect())
    }

    /// Records one update; returns its number.
    #[pyo3(signature = (position, fed, loss, gradient_norm, num_microbatches, groups))]
    #[allow(clippy::too_many_arguments, reason = "each is one field of the entry")]
    fn step(
        &mut self,
        python: Python<'_>,
        position: u64,
        fed: Vec<Vec<u8>>,
        loss: f64,
        gradient_norm: f64,
        num_microbatches: u32,
        groups: Vec<Group>,
    ) -> PyResult<u64> {
        let groups = groups.into_iter().map(|group| {
            let (group, learning_rate, clip_coefficient, weight_decay, parameter_norm, update_norm) = group;
            GroupStep { clip_coefficient, group, learning_rate, parameter_norm, update_norm, weight_decay }
        });
        let groups = groups.collect();
        let attempt = self.here_mut()?;
        python
            .detach(|| {
                attempt.step(&Step { fed: &fed, gradient_norm, groups, loss, num_microbatches, position })
            })
            .map_err(raise)
    }

    /// Records an evaluation; returns the value.
    fn evaluation(
        &mut self,
        python: Python<'_>,
        stream: &str,
        total_nats: f64,
        num_examples: u64,
        num_tokens: u64,
    ) -> PyResult<f64> {
        let attempt = self.here_mut()?;
        let evaluation = Evaluation { num_examples, num_tokens, stream, total_nats };
        python.detach(|| attempt.evaluation(&evaluation)).map_err(raise)
    }

    /// Records numbers that decide nothing.
    fn diagnostic(&mut self, python: Python<'_>, name: &str, values: BTreeMap<String, f64>) -> PyResult<()> {
        let attempt = self.here_mut()?;
        python.detach(|| attempt.diagnostic(name, &values)).map_err(raise)
    }

    /// Saves the state after the last step; returns the checkpoint's name.
    fn save(
        &mut self,
        python: Python<'_>,
        model: Vec<(String, String, Vec<u64>, Vec<u8>)>,
        optimizer: Vec<(String, String, Vec<u64>, Vec<u8>)>,
        position: u64,
    ) -> PyResult<String> {
        let attempt = self.here_mut()?;
        python
            .detach(|| {
                let model = model.into_iter().map(tensor).collect();
                let optimizer = optimizer.into_iter().map(tensor).collect();
                attempt.save(model, optimizer, position)
            })
            .map_err(raise)
    }

    /// Ends the run; returns the selected candidate, the last step, and whether
    /// the quality target was met.
    fn finish(&mut self, python: Python<'_>) -> PyResult<(Option<String>, u64, Option<bool>)> {
        let attempt = self.here_mut()?;
        let finished = python.detach(|| attempt.finish()).map_err(raise)?;
        Ok((finished.candidate, finished.last_step, finished.target_met))
    }

    /// Ends the attempt because somebody interrupted it.
    fn interrupt(&mut self, python: Python<'_>, reason: &str) -> PyResult<()> {
        let attempt = self.here_mut()?;
        python.detach(|| attempt.interrupt(reason)).map_err(raise)
    }

    /// Ends the attempt as failed.
    #[pyo3(signature = (reason, fault=None))]
    fn fail(&mut self, python: Python<'_>, reason: &str, fault: Option<&str>) -> PyResult<()> {
        let fault = fault.map(|name| {
            serde_json::from_value::<ObservedFault>(serde_json::Value::from(name)).map_err(|_| {
                LedgerError::new_err(format!(
                    "{name:?} is no fault\nhint: such as data_changed, not_finite, state_mismatch or storage_failed"
                ))
            })
        });
        let fault = fault.transpose()?;
        let attempt = self.here_mut()?;
        python.detach(|| attempt.fail(reason, fault)).map_err(raise)
    }
}

/// The module `governed_ledger._native`.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeAttempt>()?;
    module.add("LedgerError", module.py().get_type::<LedgerError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
