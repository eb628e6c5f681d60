//! A worker: a process that executes what worker 0 tells it, on a replica of its
//! own.
//!
//! It writes no file and no entry. It leaves when its connections are closed,
//! whether worker 0 dismissed it or died, in the middle of an update too.
//! Signals that a person sends are for worker 0, which ends the attempt; this
//! process takes no notice of them.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use corpus::examples::ExampleTable;
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use schemas::contract::Architecture;
use schemas::data::Split;
use schemas::digest::Digest;
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::frames::{self, Frame, FrameError, Kind};
use super::message::{self, Failure, FaultPlace, Setup, State, Update, WorkerFault};
use super::peer::BEAT_BYTES;
use crate::data::{DataError, ExampleSource};
use crate::device;
use crate::engine::share::{self, Share};
use crate::engine::{Engine, EngineConfig, EngineError};
use crate::identity;
use crate::run::costs;
use crate::run::error::chain;

/// Largest document and table that a worker is set up with.
const MAX_SETUP_BYTES: u64 = 1 << 34;

/// Why a worker ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It was not started by a run.
    #[error("standard input is no connection; `trainer run --workers N` starts workers by itself")]
    NotAWorker,
    /// A connection or the system failed.
    #[error("the worker cannot go on")]
    Io(#[from] io::Error),
    /// The process that records is gone, or dismissed it.
    #[error("dismissed")]
    Dismissed,
    /// What came is not what was due.
    #[error("{0}")]
    Frame(String),
    /// Another build than the process that records.
    #[error(
        "the worker's code is {actual}, and the run's {expected}; do not replace the program while it runs"
    )]
    Code {
        /// Of the process that records.
        expected: Digest,
        /// Of this one.
        actual: Digest,
    },
    /// A document is not one.
    #[error("a document is not readable")]
    Document(#[from] serde_json::Error),
    /// Text cannot be read.
    #[error("the data cannot be used")]
    Data(#[from] DataError),
    /// The numeric core failed.
    #[error("the update failed")]
    Engine(#[from] EngineError),
}

impl From<FrameError> for ProcessError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Closed => Self::Dismissed,
            FrameError::Io(error) => Self::Io(error),
            FrameError::Malformed(reason) => Self::Frame(reason),
        }
    }
}

impl ProcessError {
    const fn is_data(&self) -> bool {
        matches!(self, Self::Data(_) | Self::Engine(EngineError::Data(_)))
    }
}

/// Executes updates until it is dismissed. `parent` is the process that started
/// it.
///
/// # Errors
/// When it cannot go on; it has told worker 0 why, where that still listens.
pub fn run(parent: u32) -> Result<(), ProcessError> {
    // A worker that was stopped leaves too.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(parent) {
        return Ok(());
    }
    for number in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(number, Arc::new(AtomicBool::new(false)))?;
    }
    let mut stream = connection(io::stdin().as_fd())?;
    let beats = connection(io::stdout().as_fd())?;
    let mut worker = match Worker::begin(&mut stream, beats) {
        Ok(worker) => worker,
        Err(error) => return tell(&mut stream, 0, error),
    };
    loop {
        let step = worker.engine.step_number() + 1;
        if let Err(error) = worker.obey(&mut stream) {
            return tell(&mut stream, step, error);
        }
    }
}

/// Tells worker 0 why this one cannot go on. That it was dismissed is no reason.
fn tell(stream: &mut UnixStream, step: u64, error: ProcessError) -> Result<(), ProcessError> {
    if matches!(error, ProcessError::Dismissed) {
        return Ok(());
    }
    let failure = Failure { is_data: error.is_data(), message: chain(&error) };
    // Where nobody listens, standard error is told.
    let _ = send(stream, Kind::Failure, step, &serde_json::to_vec(&failure)?);
    Err(error)
}

fn connection(descriptor: std::os::fd::BorrowedFd<'_>) -> Result<UnixStream, ProcessError> {
    let stream = UnixStream::from(descriptor.try_clone_to_owned()?);
    stream.local_addr().map_err(|_| ProcessError::NotAWorker)?;
    Ok(stream)
}

fn send(stream: &mut UnixStream, kind: Kind, step: u64, payload: &[u8]) -> Result<(), ProcessError> {
    let written =
        stream.write_all(&frames::header(kind, step, payload)).and_then(|()| stream.write_all(payload));
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ProcessError::Dismissed,
        _ => ProcessError::Io(error),
    })
}

fn receive(stream: &mut UnixStream, kind: Kind, max_bytes: u64) -> Result<Frame, ProcessError> {
    let frame = frames::read(stream, max_bytes)?;
    if frame.kind != kind {
        return Err(ProcessError::Frame(format!("{:?} came where {kind:?} was due", frame.kind)));
    }
    Ok(frame)
}

fn document<T: DeserializeOwned>(stream: &mut UnixStream, kind: Kind) -> Result<T, ProcessError> {
    Ok(serde_json::from_slice(&receive(stream, kind, MAX_SETUP_BYTES)?.payload)?)
}

/// A replica, and what it is asked for.
struct Worker {
    engine: Engine,
    /// The share of the update before, where it is kept.
    last: Option<(u64, Share)>,
    setup: Setup,
}

impl Worker {
    /// Takes over contract, data and state, and says what it came to.
    fn begin(stream: &mut UnixStream, beats: UnixStream) -> Result<Self, ProcessError> {
        let setup = document::<Setup>(stream, Kind::Setup)?;
        let code = identity::code().digest;
        if code != setup.code {
            return Err(ProcessError::Code { expected: setup.code, actual: code });
        }
        let every = Duration::from_millis(u64::from(setup.heartbeat_ms.max(1)));
        let beat = move || beat(beats, every);
        std::thread::Builder::new().name("beats".to_owned()).spawn(beat)?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(setup.num_threads as usize);
        pool.build_global().map_err(io::Error::other)?;

        let table = receive(stream, Kind::Examples, MAX_SETUP_BYTES)?;
        let table = ExampleTable::from_bytes(&table.payload);
        let table = table.map_err(|error| ProcessError::Frame(error.to_string()))?;
        let Architecture::LlamaDecoder(decoder) = &setup.contract.architecture;
        let context = decoder.context_length;
        let train = ExampleSource::open(&setup.data, &setup.folder, Split::Train, table.records, context)?;
        let device = device::open(setup.contract.plan.device);
        let mut engine = Engine::initial(EngineConfig {
            contract: &setup.contract,
            card: &setup.card,
            parameters: &setup.parameters,
            train,
            val: ExampleSource::closed(Split::Val),
            device: device.map_err(|error| EngineError::device("opening the device", &error))?,
        })?;
        engine.forget_averages();
        let mut worker = Self { engine, last: None, setup };
        let state = receive(stream, Kind::State, MAX_SETUP_BYTES)?;
        worker.take_state(stream, &state)?;
        Ok(worker)
    }

    /// Takes over where the run stands, and says what it came to.
    fn take_state(&mut self, stream: &mut UnixStream, frame: &Frame) -> Result<(), ProcessError> {
        let state: State = serde_json::from_slice(&frame.payload)?;
        let replica = receive(stream, Kind::Replica, self.setup.max_bytes)?;
        self.engine.restore_replica(&replica.payload)?;
        self.engine.take_position(self.setup.worker, state.position)?;
        self.engine.compute_in(state.compute.dtype());
        if let Some(shuffle) = state.shuffle {
            self.engine.restore_shuffle(shuffle)?;
        }
        send(stream, Kind::Digest, frame.step, &self.engine.replica_digest()?.bytes)
    }

    /// One command, to its end.
    fn obey(&mut self, stream: &mut UnixStream) -> Result<(), ProcessError> {
        let frame = frames::read(stream, MAX_SETUP_BYTES)?;
        match frame.kind {
            Kind::State => self.take_state(stream, &frame),
            Kind::Update => self.update(stream, frame.step, serde_json::from_slice(&frame.payload)?),
            other => Err(ProcessError::Frame(format!("{other:?} came where a command was due"))),
        }
    }

    /// One update.
    fn update(&mut self, stream: &mut UnixStream, step: u64, command: Update) -> Result<(), ProcessError> {
        self.engine.take_position(self.setup.worker, command.position)?;
        if step != self.engine.step_number() + 1 {
            let at = self.engine.step_number();
            return Err(ProcessError::Frame(format!("step {step} was asked for behind step {at}")));
        }
        if !command.microbatches.is_empty() {
            self.share(stream, step, command.microbatches, command.fault)?;
        }
        let total = receive(stream, Kind::Total, self.setup.max_bytes)?;
        if total.step != step {
            return Err(ProcessError::Frame(format!("the total of step {} came, not of {step}", total.step)));
        }
        self.engine.take_total(&total.payload).map_err(ProcessError::Frame)?;
        self.engine.step(&AtomicBool::new(false))?;
        if command.fault == Some(WorkerFault::Damage) {
            self.engine.damage()?;
        }
        if command.digest {
            send(stream, Kind::Digest, step, &self.engine.replica_digest()?.bytes)?;
        }
        Ok(())
    }

    /// Executes microbatches and sends what they gave.
    fn share(
        &mut self,
        stream: &mut UnixStream,
        step: u64,
        microbatches: std::ops::Range<u32>,
        fault: Option<WorkerFault>,
    ) -> Result<(), ProcessError> {
        self.strike(fault, FaultPlace::BeforeForward)?;
        let never = AtomicBool::new(false);
        let share = self.engine.execute_share(self.setup.worker, microbatches, &never)?;
        // Nothing interrupts it.
        let Some(mut share) = share else { return Err(ProcessError::Dismissed) };
        self.strike(fault, FaultPlace::AfterBackward)?;
        let fresh = self.setup.keeps_last.then(|| (step, share.clone()));
        let mut sent_step = step;
        match (fault, self.last.take()) {
            (Some(WorkerFault::Stale { relabelled: true }), Some((_, last))) => share.blocks = last.blocks,
            (Some(WorkerFault::Stale { relabelled: false }), Some((earlier, last))) => {
                (sent_step, share) = (earlier, last);
            }
            _ => {}
        }
        self.last = fresh;
        send(stream, Kind::Consumed, sent_step, &message::encode_consumed(&share))?;
        send(stream, Kind::Gradients, sent_step, &share::encode_blocks(&share.blocks))
    }

    fn strike(&self, fault: Option<WorkerFault>, place: FaultPlace) -> Result<(), ProcessError> {
        match fault {
            Some(WorkerFault::Die(at)) if at == place => {
                kill_process(getpid(), Signal::KILL).map_err(io::Error::from)?;
            }
            Some(WorkerFault::Stall(at)) if at == place => {
                std::thread::sleep(Duration::from_millis(2 * u64::from(self.setup.timeout_ms) + 1000));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Says that this process lives, until nobody listens; then it ends, whatever it
/// is doing.
fn beat(mut beats: UnixStream, every: Duration) {
    for count in 0u64.. {
        let mut bytes = [0; BEAT_BYTES];
        let peak = costs::peak_resident_bytes().unwrap_or(0);
        let parts = count.to_le_bytes().into_iter().chain(peak.to_le_bytes());
        bytes.iter_mut().zip(parts).for_each(|(slot, byte)| *slot = byte);
        if beats.write_all(&bytes).is_err() || is_closed(&beats, every) {
            std::process::exit(0);
        }
    }
}

/// Waits, and whether the other side closed the connection meanwhile. It never
/// sends anything.
fn is_closed(mut beats: &UnixStream, wait: Duration) -> bool {
    use std::io::Read;
    if beats.set_read_timeout(Some(wait)).is_err() {
        return true;
    }
    match beats.read_exact(&mut [0; 1]) {
        Ok(()) => true,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
        ),
    }
}
