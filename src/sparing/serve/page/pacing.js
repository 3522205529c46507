// When things happen: after a pause, once per frame.

/** Wait, or throw as soon as the signal is aborted. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/**
 * A function that runs `task(signal)` a moment after it was last called. A new call ends what the
 * last one still does; other problems go to `complain`.
 */
export function later(task, milliseconds, complain) {
  let control = new AbortController();
  return async () => {
    control.abort();
    control = new AbortController();
    const { signal } = control;
    try {
      await pause(milliseconds, signal);
      await task(signal);
    } catch (problem) {
      if (!signal.aborted) complain(problem);
    }
  };
}

/** A function that runs `task` at most once per frame. */
export function paced(task) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      task();
    });
  };
}
