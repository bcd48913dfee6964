// The same as an ES module, whose default export is the class.
export {
  ExecutionError, Lock, Redlock, Redlock as default, ResourceLockedError, type ClientExecutionResult, type ExecutionResult,
  type ExecutionStats, type RedlockAbortSignal, type Settings,
} from "./redlock.js";
