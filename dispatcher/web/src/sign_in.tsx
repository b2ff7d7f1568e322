/** The page to sign in: with an account of an issuer, or with an API key. */
import { useState } from "preact/hooks";
import { ApiError } from "./api/client.ts";
import { useResource } from "./api/resource.ts";
import type { SignIn } from "./api/types.ts";
import { Problem } from "./components/basics.tsx";
import { signInByKey } from "./session.ts";

export function SignInPage() {
  document.title = "Sign in · Trainmaster";
  const { data } = useResource<SignIn>("/v1/sign-in");
  const issuers = data?.browser ? (data.issuers ?? []) : [];
  const back = encodeURIComponent(location.pathname + location.search);
  return (
    <main class="sign-in">
      <h1>Trainmaster</h1>
      {issuers.map((one) => (
        <a
          class="button primary"
          key={one.name}
          href={`/v1/sign-in/browser?issuer=${encodeURIComponent(one.name)}&return=${back}`}
        >
          Sign in {issuers.length > 1 ? `with ${one.name}` : "with your company's account"}
        </a>
      ))}
      <KeyForm isOnly={issuers.length === 0} />
    </main>
  );
}

function KeyForm({ isOnly }: { isOnly: boolean }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState<ApiError>();
  const [isSending, setSending] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setSending(true);
    setError(undefined);
    try {
      await signInByKey(key.trim());
    } catch (problem) {
      if (problem instanceof ApiError) setError(problem);
    }
    setSending(false);
  };
  return (
    <form onSubmit={submit}>
      {!isOnly && <p class="muted">or with an API key</p>}
      <label class="field">
        <span>API key</span>
        <input
          type="password"
          autoComplete="current-password"
          required
          value={key}
          onInput={(event) => setKey(event.currentTarget.value)}
          placeholder="tmk_…"
        />
      </label>
      <Problem error={error} />
      <button type="submit" class="primary" disabled={isSending}>
        Sign in
      </button>
      <p class="muted">
        <code>trainmaster dashboard</code> says where the key of this machine is; admins make keys by{" "}
        <code>trainmaster keys make</code>.
      </p>
    </form>
  );
}
