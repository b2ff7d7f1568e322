/** Whose browser this is, and what the caller may do. */
import { signal } from "@preact/signals";
import { call, configure, get } from "./api/client.ts";
import type { Identity, SignedOut } from "./api/types.ts";

/** Permissions as in docs/reference/roles.md. */
export type Permission =
  | "jobs.list"
  | "jobs.read"
  | "jobs.submit"
  | "jobs.change"
  | "jobs.connect"
  | "queues.read"
  | "queues.write"
  | "policies.read"
  | "policies.write"
  | "clusters.read"
  | "clusters.operate"
  | "usage.read"
  | "prices.read"
  | "audit.read"
  | "keys.read"
  | "access.read"
  | "simulations.read"
  | "simulations.run";

/** The caller; null where nobody has signed in, undefined until that is known. */
export const identity = signal<Identity | null | undefined>(undefined);

/** Returns whether the caller has a permission in any queue, or in the whole installation. */
export function may(permission: Permission): boolean {
  return identity.value?.permissions?.includes(permission) ?? false;
}

/** Reads who the caller is. */
export async function readIdentity(): Promise<void> {
  configure({
    signedOut: () => {
      identity.value = null;
    },
  });
  try {
    const found = await get<Identity>("/v1/whoami");
    configure({ csrfToken: found.csrfToken ?? "" });
    identity.value = found;
  } catch {
    if (identity.value === undefined) identity.value = null;
  }
}

export async function signInByKey(key: string): Promise<void> {
  await call("POST", "/v1/sign-in/key", { body: { key } });
  await readIdentity();
}

/** Ends the session here and, where the issuer of the account has one of its own, sends the browser there to end it, too. */
export async function signOut(): Promise<void> {
  const ended = await call<SignedOut | undefined>("POST", "/v1/sign-out");
  identity.value = null;
  if (ended?.endSessionUrl) location.assign(ended.endSessionUrl);
}
