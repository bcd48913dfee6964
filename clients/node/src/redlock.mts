// The same as an ES module, whose default export is the class.
export {ExecutionError, Lock, Redlock, Redlock as default, ResourceLockedError, type RedlockAbortSignal, type Settings} from "./redlock.js";
