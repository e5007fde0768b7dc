// Commands that are typed into a terminal and not run: whoever reads them presses Enter.
import * as vscode from 'vscode'

export function type(name: string, words: string[], cwd: string | undefined): void {
  // hidden until it is shown, so that the Python extension types nothing of its own behind the command
  const terminal = vscode.window.createTerminal({ name, cwd, hideFromUser: true })
  terminal.show()
  const short = words.map((word) => (cwd && word.startsWith(`${cwd}/`) ? word.slice(cwd.length + 1) : word))
  terminal.sendText(short.map(quoted).join(' '), false)
}

/** As a POSIX shell reads it back. Its line editor takes control characters for keys, quoted or not: a file named ^U…^O would
 * be a command that runs. A word with one is refused. */
export function quoted(word: string): string {
  if (/[\x00-\x1f\x7f-\x9f]/.test(word)) throw new Error('a control character in a command: nothing was typed')
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`
}
