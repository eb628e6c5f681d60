//! Connections that end: each lasts so long at most, and there are so many at
//! most, so that clients that send nothing, or a byte now and then, keep neither
//! file descriptors nor a server that was told to stop.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// How long a connection lasts: many times what a request takes.
const LONGEST: Duration = Duration::from_secs(20);

/// Connections at a time. Further ones wait until one ends.
const MAX_CONNECTIONS: usize = 128;

/// A listener whose connections end.
pub(crate) struct Limited {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    longest: Duration,
}

impl Limited {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self::with_limits(listener, MAX_CONNECTIONS, LONGEST)
    }

    fn with_limits(listener: TcpListener, max_connections: usize, longest: Duration) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(max_connections)), longest }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // It is closed by nobody; without a permit there would only be no limit.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        // Errors of single connections are waited out there.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (Connection { deadline: Box::pin(sleep(self.longest)), stream, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with its last moment.
pub(crate) struct Connection {
    deadline: Pin<Box<Sleep>>,
    stream: TcpStream,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// An error once the connection lasted long enough.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "the connection lasted too long")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work)
    }

    #[test]
    fn who_sends_nothing_is_let_go_and_makes_room() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let mut limited = Limited::with_limits(listener, 1, Duration::from_millis(200));
            let _silent = TcpStream::connect(address).await.expect("connected");
            let _next = TcpStream::connect(address).await.expect("connected");
            let (mut first, _) = limited.accept().await;
            // The second one waits for the first to end.
            let early = tokio::time::timeout(Duration::from_millis(50), limited.accept()).await;
            assert!(early.is_err(), "there is room for one");
            let mut space = [0; 8];
            let mut buffer = ReadBuf::new(&mut space);
            let read = std::future::poll_fn(|context| Pin::new(&mut first).poll_read(context, &mut buffer));
            let ended = read.await.expect_err("nothing comes");
            assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
            drop(first);
            let second = tokio::time::timeout(Duration::from_secs(10), limited.accept()).await;
            assert!(second.is_ok(), "there is room again");
        });
    }
}
