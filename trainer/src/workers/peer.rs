//! A worker as the process that records sees it: the child, the connection that
//! frames go over, and the one that says that it lives.
//!
//! Both connections are socket pairs, so that nothing else can connect, and no
//! file is left over. The worker finds them as its standard input and output.
//! Whatever ends the collective, the child is waited for: there is no zombie and
//! no orphan.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::clock::Reading;
use super::frames::{self, Frame, FrameError, Kind};
use super::{SUBCOMMAND, WorkerError};

/// Bytes of a sign of life: a count and the peak of resident memory.
pub(super) const BEAT_BYTES: usize = 16;

/// Longest that one write may wait before the clock is looked at.
const WRITE_SLICE: Duration = Duration::from_millis(50);
/// How long a worker that was told to leave may take.
const LEAVE_GRACE: Duration = Duration::from_secs(2);
/// How long it is waited for the end of a process whose connection is closed.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// Pause between two looks at a child.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// Variables that the process that records goes by, and no worker.
const NOT_FOR_WORKERS: [&str; 3] = ["FAILPOINTS", "LEDGER_FAULT_PLAN", crate::run::KEYS_VARIABLE];

/// Something that came from a worker.
#[derive(Debug)]
pub(super) struct Arrival {
    /// When, on the collective's clock.
    pub(super) at_ms: u64,
    /// When.
    pub(super) at: Instant,
    /// What.
    pub(super) frame: Result<Frame, FrameError>,
    /// From whom.
    pub(super) worker: u32,
}

/// A worker of this process.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    heard_ms: Arc<AtomicU64>,
    /// None once it was told to leave.
    connections: Option<[UnixStream; 2]>,
    /// When it was told to leave.
    dismissed: Option<Instant>,
    peak_bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    worker: u32,
}

impl Peer {
    /// Starts a worker and the threads that listen to it.
    pub(super) fn start(
        program: &Path,
        worker: u32,
        max_bytes: u64,
        clock: &Reading,
        inbox: &Sender<Arrival>,
    ) -> Result<Self, WorkerError> {
        let failed = |source| WorkerError::Start { worker, source };
        let (frames, for_frames) = UnixStream::pair().map_err(failed)?;
        let (beats, for_beats) = UnixStream::pair().map_err(failed)?;
        frames.set_write_timeout(Some(WRITE_SLICE)).map_err(failed)?;
        let mut command = Command::new(program);
        command.arg(SUBCOMMAND).arg("--parent").arg(std::process::id().to_string());
        command.stdin(Stdio::from(OwnedFd::from(for_frames))).stdout(Stdio::from(OwnedFd::from(for_beats)));
        // What a terminal sends to the group ends the attempt, and that the
        // workers.
        command.process_group(0);
        // What asks something of the process that records asks nothing of it.
        for variable in NOT_FOR_WORKERS {
            command.env_remove(variable);
        }
        let child = command.spawn().map_err(failed)?;
        // It holds the worker's ends: with them open here, nobody would see the
        // end of a worker.
        drop(command);
        let mut peer = Self {
            child,
            heard_ms: Arc::new(AtomicU64::new(clock.now_ms())),
            connections: None,
            dismissed: None,
            peak_bytes: Arc::default(),
            threads: Vec::new(),
            worker,
        };
        // Before the threads, so that one that cannot be started ends the other.
        let [frames, beats] = peer.connections.insert([frames, beats]);
        let streams = [frames.try_clone().map_err(failed)?, beats.try_clone().map_err(failed)?];
        peer.listen(streams, max_bytes, clock, inbox).map_err(failed)?;
        Ok(peer)
    }

    fn listen(
        &mut self,
        [mut frames, mut beats]: [UnixStream; 2],
        max_bytes: u64,
        clock: &Reading,
        inbox: &Sender<Arrival>,
    ) -> io::Result<()> {
        let (reading, inbox, worker) = (clock.clone(), inbox.clone(), self.worker);
        let receive = move || {
            loop {
                let frame = frames::read(&mut frames, max_bytes);
                let is_over = frame.is_err();
                let arrival = Arrival { at_ms: reading.now_ms(), at: Instant::now(), frame, worker };
                if inbox.send(arrival).is_err() || is_over {
                    return;
                }
            }
        };
        let reading = clock.clone();
        let (heard, peak) = (Arc::clone(&self.heard_ms), Arc::clone(&self.peak_bytes));
        let hear = move || {
            let mut beat = [0; BEAT_BYTES];
            while beats.read_exact(&mut beat).is_ok() {
                heard.store(reading.now_ms(), Ordering::Relaxed);
                if let (_, Some(bytes)) = (beat.first_chunk::<8>(), beat.last_chunk::<8>()) {
                    peak.fetch_max(u64::from_le_bytes(*bytes), Ordering::Relaxed);
                }
            }
        };
        let named = |name: &str| std::thread::Builder::new().name(format!("{name}-{worker}"));
        self.threads.push(named("frames").spawn(receive)?);
        self.threads.push(named("beats").spawn(hear)?);
        Ok(())
    }

    /// Which worker it is.
    pub(super) const fn worker(&self) -> u32 {
        self.worker
    }

    /// When it gave its last sign of life, on the collective's clock.
    pub(super) fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// The most memory that it said to have had.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Sends a frame, as long as the clock is before `until_ms`; `false` when
    /// `interrupt` was set before all of it was taken.
    pub(super) fn send(
        &mut self,
        kind: Kind,
        step: u64,
        payload: &[u8],
        clock: &Reading,
        (until_ms, timeout_ms): (u64, u32),
        interrupt: &AtomicBool,
    ) -> Result<bool, WorkerError> {
        let worker = self.worker;
        let header = frames::header(kind, step, payload);
        for mut rest in [header.as_slice(), payload] {
            while !rest.is_empty() {
                let written = match &mut self.connections {
                    Some([frames, _]) => frames.write(rest),
                    None => Err(io::ErrorKind::NotConnected.into()),
                };
                match written {
                    Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error)
                        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                    {
                        if interrupt.load(Ordering::Relaxed) {
                            return Ok(false);
                        }
                        if clock.now_ms() > until_ms {
                            return Err(WorkerError::Late {
                                worker,
                                step,
                                how: "it took nothing",
                                timeout_ms,
                            });
                        }
                    }
                    Err(error) => return Err(self.lost(step, &error.to_string())),
                }
            }
        }
        Ok(true)
    }

    /// That it is gone, with how its process ended where that is known.
    pub(super) fn lost(&mut self, step: u64, seen: &str) -> WorkerError {
        let ended = self.wait(EXIT_GRACE);
        let how =
            ended.map_or_else(|| seen.to_owned(), |status| format!("{seen}; its process ended, {status}"));
        WorkerError::Lost { worker: self.worker, step, how }
    }

    /// Waits for the end of the process, for so long.
    fn wait(&mut self, grace: Duration) -> Option<String> {
        let until = Instant::now() + grace;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status.to_string()),
                Ok(None) if Instant::now() < until => std::thread::sleep(POLL_EVERY),
                _ => return None,
            }
        }
    }

    /// Tells it to leave: closes what it listens to.
    pub(super) fn dismiss(&mut self) {
        self.dismissed.get_or_insert_with(Instant::now);
        for connection in self.connections.take().into_iter().flatten() {
            // It may be closed already, from the other side.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Sees it out: one that does not leave by itself is killed, and either way
    /// it is waited for.
    fn reap(&mut self) {
        self.dismiss();
        // Those that were told together have the same time, however many they are.
        let gone = self.dismissed.map_or(Duration::ZERO, |told| told.elapsed());
        if self.wait(LEAVE_GRACE.saturating_sub(gone)).is_none() {
            // One that ended meanwhile cannot be killed, and need not be.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for thread in self.threads.drain(..) {
            // Its panic would have been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.reap();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::clock::Clock;
    use super::*;

    /// More than the buffers of a socket hold.
    const MUCH: usize = 8 << 20;

    /// A worker that never reads what it is sent.
    fn deaf(folder: &Path, clock: &Clock) -> Peer {
        let program = folder.join("deaf");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 60\n").expect("a script");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("it is a program");
        let (inbox, _) = std::sync::mpsc::channel();
        Peer::start(&program, 1, 0, &clock.reading(), &inbox).expect("it starts")
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_worker_that_takes_nothing() {
        let clock = Clock::start().expect("a clock");
        let interrupt = AtomicBool::new(false);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut peer = deaf(folder.path(), &clock);
        let until = (clock.deadline_ms(60_000), 60_000);
        let started = Instant::now();
        let sent = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                interrupt.store(true, Ordering::Relaxed);
            });
            peer.send(Kind::Replica, 0, &vec![0; MUCH], &clock.reading(), until, &interrupt)
        });
        assert!(!sent.expect("no error"), "it took everything");
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }

    #[test]
    fn without_a_signal_it_is_late() {
        let clock = Clock::start().expect("a clock");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut peer = deaf(folder.path(), &clock);
        let until = (clock.deadline_ms(200), 200);
        let never = AtomicBool::new(false);
        let sent = peer.send(Kind::Replica, 0, &vec![0; MUCH], &clock.reading(), until, &never);
        assert!(matches!(sent, Err(WorkerError::Late { worker: 1, timeout_ms: 200, .. })), "{sent:?}");
    }
}
